/**
 * What one sandbox's record on disk says. Only this worker writes it, below a directory that only root may
 * enter; it is decoded as strictly as anything from outside, because an older version may have written it. The
 * ticket stands in it as it was signed and is opened again with the key of today.
 */
import * as v from 'valibot';
import { LIMITS } from '../base/limits.ts';
import type { Verdict } from '../lease/refusal.ts';
import type { TicketClaims } from '../lease/ticket.ts';
import { Mount, Resources } from '../rpc/message.ts';

/** Bytes of one record; most of it is one ticket. */
export const RECORD_BYTES_MAX = 2 * LIMITS.ticketCharsMax;
/** Tickets of one lease that are good at the same time: each running launch holds one. */
export const GRANTS_MAX = 64;

const text = (max: number) => v.pipe(v.string(), v.maxLength(max));
const whole = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(Number.MAX_SAFE_INTEGER));

export const SANDBOX_STATES = ['preparing', 'ready', 'stopping', 'lost', 'dirty'] as const;
export type SandboxState = (typeof SANDBOX_STATES)[number];

const Grant = v.strictObject({
  nonce: v.pipe(v.string(), v.regex(/^[0-9a-f]{32}$/)),
  /** When this worker gave the nonce out and when the ticket that answered it ends, milliseconds since boot. */
  issuedMs: whole,
  deadlineMs: whole,
});
/** A ticket that was accepted. */
export type Grant = v.InferOutput<typeof Grant>;

const Anchor = v.strictObject({
  unit: text(255),
  invocationId: text(64),
  workspace: v.nullable(text(LIMITS.pathBytesMax)),
  mounts: v.pipe(v.array(Mount), v.maxLength(LIMITS.leaseScopesMax)),
});
export type Anchor = v.InferOutput<typeof Anchor>;

const Document = v.strictObject({
  version: v.literal(1),
  state: v.picklist(SANDBOX_STATES),
  bootId: text(LIMITS.bootIdBytesMax),
  ticket: text(LIMITS.ticketCharsMax),
  grants: v.pipe(v.array(Grant), v.maxLength(GRANTS_MAX)),
  deadlineMs: whole,
  anchor: v.nullable(Anchor),
  resources: Resources,
});

export type SandboxRecord = {
  readonly state: SandboxState;
  /** The boot that `deadlineMs`, the grants and the anchor belong to. */
  readonly bootId: string;
  /** The newest ticket accepted, and what it says. */
  readonly ticket: string;
  readonly claims: TicketClaims;
  readonly grants: readonly Grant[];
  /** The latest end of all tickets accepted: the right to run ends there. */
  readonly deadlineMs: number;
  /** What the sandbox was asked for with. */
  readonly resources: Resources;
  /** Null until the anchor was up once. */
  readonly anchor: Anchor | null;
};

export const encodeRecord = (record: SandboxRecord): Buffer => {
  const { state, bootId, ticket, grants, deadlineMs, anchor, resources } = record;
  return Buffer.from(
    `${JSON.stringify({ version: 1, state, bootId, ticket, grants, deadlineMs, anchor, resources })}\n`,
  );
};

/** The record, or undefined for bytes that are none or whose ticket `open` refuses. */
export const decodeRecord = (
  bytes: Buffer,
  open: (ticket: string) => Verdict<TicketClaims>,
): SandboxRecord | undefined => {
  let document: unknown;
  try {
    document = JSON.parse(bytes.toString('utf8'));
  } catch {
    return undefined;
  }
  const parsed = v.safeParse(Document, document);
  if (!parsed.success) return undefined;
  const opened = open(parsed.output.ticket);
  if (!opened.ok) return undefined;
  const { state, bootId, ticket, grants, deadlineMs, anchor, resources } = parsed.output;
  return { state, bootId, ticket, claims: opened.value, grants, deadlineMs, anchor, resources };
};
