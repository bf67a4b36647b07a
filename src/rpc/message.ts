/**
 * The messages of the worker protocol, major version 1. The page is man/xce-sandbox-protocol.7; this file is
 * its schema. Unknown keys of a newer minor version are ignored; a newer major version is refused.
 */
import * as v from 'valibot';
import { type ErrorCode, isErrorCode } from '../base/errors.ts';
import {
  type InstanceName,
  type JobId,
  type NodeName,
  parseInstanceName,
  parseJobId,
  parseNodeName,
  SECTION_NAME,
} from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';

export const PROTOCOL = { major: 1, minor: 2 } as const;

/** Channels of the frames in a stream: first byte of each frame, before four bytes of big-endian length. */
export const CHANNEL = {
  head: 0,
  stdin: 1,
  stdout: 2,
  stderr: 3,
  /** Server to client: StreamEvent. Client to server: StreamCommand. */
  control: 4,
  endOfStdin: 5,
  /** Server to client, last frame: WireError. */
  error: 6,
  /** Server to client: four bytes, how many more bytes of stdin the client may send. */
  credit: 7,
} as const;

export const STREAM = {
  headerBytes: 5,
  /** Bytes of stdin a client may send before the first credit frame, and the most that may be open at any time. */
  stdinCreditBytes: 256 << 10,
  /** Commands a client may have sent that the server has not taken up yet. */
  commandsWaitingMax: 256,
  /** Largest payload on the channels control and error. */
  documentBytesMax: 64 << 10,
} as const;

const text = (max: number) => v.pipe(v.string(), v.maxLength(max));
const whole = (min: number, max: number) => v.pipe(v.number(), v.integer(), v.minValue(min), v.maxValue(max));
const branded = <T extends string>(parse: (value: string) => T | undefined, name: string) =>
  v.pipe(
    v.string(),
    v.check((value) => parse(value) === value, `not a ${name}`),
    v.transform((value) => value as T),
  );

const count = whole(0, Number.MAX_SAFE_INTEGER);
const leaseNumber = whole(1, Number.MAX_SAFE_INTEGER);
const epoch = whole(1, Number.MAX_SAFE_INTEGER);
const uid = whole(1, 2_147_483_647);
const hex = (bytes: number) => v.pipe(v.string(), v.regex(new RegExp(`^[0-9a-f]{${bytes * 2}}$`)));
const jobId = branded<JobId>(parseJobId, 'job id');
const nodeName = branded<NodeName>(parseNodeName, 'node name');
const instanceName = branded<InstanceName>(parseInstanceName, 'instance name');
const absolutePath = v.pipe(text(LIMITS.pathBytesMax), v.regex(/^\/[^\0]*$/));
/** Text of a check that stands for a limit; decode.ts gives it the code 'too-large'. */
export const OVER_LIMIT = 'over the limit in all';
const base64Bytes = (value: string): number =>
  (value.length / 4) * 3 - (value.endsWith('==') ? 2 : value.endsWith('=') ? 1 : 0);
/**
 * Base64 of bytes that the wire must carry exactly (arguments, environment, names of files) and that the kernel
 * takes: no NUL. Compared by encoding again, because a regular expression over a megabyte is not bounded.
 */
const base64 = (bytesMax: number) =>
  v.pipe(
    text(Math.ceil(bytesMax / 3) * 4),
    v.check((value) => {
      const bytes = Buffer.from(value, 'base64');
      return bytes.toString('base64') === value && !bytes.includes(0);
    }, 'not the base64 of bytes without NUL'),
  );
const bytesInAll = (bytesMax: number) =>
  v.check(
    (values: string[]) => values.reduce((sum, value) => sum + base64Bytes(value), 0) <= bytesMax,
    OVER_LIMIT,
  );
const argv = v.pipe(
  v.array(base64(LIMITS.argvBytesMax)),
  v.minLength(1),
  v.maxLength(LIMITS.argvCountMax),
  bytesInAll(LIMITS.argvBytesMax),
);
const variable = v.pipe(
  base64(LIMITS.envBytesMax),
  v.check((value) => Buffer.from(value, 'base64').indexOf('=') > 0, 'not the base64 of NAME=value'),
);
const environment = v.pipe(
  v.array(variable),
  v.maxLength(LIMITS.envCountMax),
  bytesInAll(LIMITS.envBytesMax),
);
const ticket = text(LIMITS.ticketCharsMax);
const stepId = v.pipe(v.string(), v.regex(/^[a-z0-9]{1,16}$/));

export const Mount = v.object({
  path: absolutePath,
  /** Mount source and type as in /proc/self/mountinfo, root of the mount within its file system, statfs f_fsid in hex. */
  source: text(LIMITS.pathBytesMax),
  type: text(LIMITS.mountWordBytesMax),
  fsid: text(LIMITS.mountWordBytesMax),
});
export type Mount = v.InferOutput<typeof Mount>;

/** What a job may use on a node; null: what the configuration of the node gives to every job. */
export const Resources = v.object({
  /** 100 is one processor. */
  cpuPercent: v.nullable(whole(1, LIMITS.cpusMax * 100)),
  /** Numbers of the processors it may run on. */
  cpus: v.nullable(
    v.pipe(v.array(whole(0, LIMITS.cpusMax - 1)), v.minLength(1), v.maxLength(LIMITS.cpusMax)),
  ),
  memoryBytes: v.nullable(whole(LIMITS.sandboxMemoryBytesMin, LIMITS.sandboxMemoryBytesMax)),
  tasks: v.nullable(whole(LIMITS.sandboxTasksMin, LIMITS.sandboxTasksMax)),
  /** Paths of devices among those that the node's configuration names. */
  devices: v.nullable(
    v.pipe(
      v.array(v.pipe(text(255), v.regex(/^\/dev\/[A-Za-z0-9/._@+*-]+$/))),
      v.maxLength(LIMITS.devicesMax),
    ),
  ),
  /** An [environment NAME] of the node's configuration. */
  profile: v.nullable(v.pipe(v.string(), v.regex(SECTION_NAME))),
});
export type Resources = v.InferOutput<typeof Resources>;

/** systemd's Result of a unit whose processes the kernel has killed for want of memory. */
export const OUT_OF_MEMORY = 'oom-kill';

export const StepResult = v.object({
  /** systemd's Result of the unit: 'success', 'exit-code', 'signal', 'timeout', … ; 'lost' when nothing was recorded. */
  result: text(64),
  /** systemd's ExecMainCode as a word: 'exited', 'killed', 'dumped', or 'none'. */
  code: v.picklist(['exited', 'killed', 'dumped', 'none']),
  /** Exit status, or signal number. */
  status: whole(0, 255),
  /** The unit was stopped from outside (by us or by an operator) while its main process ran. */
  stopped: v.boolean(),
});
export type StepResult = v.InferOutput<typeof StepResult>;

const probeId = hex(LIMITS.probeIdBytes);
const probeName = v.pipe(v.string(), v.regex(/^[a-z0-9.-]{1,40}$/));
const probeText = v.pipe(text(LIMITS.probeTextBytesMax), v.regex(/^[\x20-\x7e\n]*$/));

/** One operation of a probe on a file of its own; what each does is said in wal/probe-action.ts. */
export const ProbeAction = v.variant('act', [
  v.object({ act: v.literal('create'), name: probeName, text: probeText }),
  v.object({ act: v.literal('link'), name: probeName, to: probeName }),
  v.object({ act: v.literal('rename'), name: probeName, to: probeName }),
  v.object({ act: v.literal('remove'), name: probeName }),
  v.object({ act: v.literal('settle'), name: probeName }),
  v.object({ act: v.literal('sync-directory') }),
  v.object({ act: v.literal('look'), name: probeName }),
  v.object({ act: v.literal('read'), name: probeName, from: count }),
  v.object({ act: v.literal('open'), name: probeName }),
  v.object({ act: v.literal('append'), name: probeName, text: probeText }),
  v.object({ act: v.literal('lock'), name: probeName, waitMs: whole(0, LIMITS.probeLockWaitMsMax) }),
  v.object({ act: v.literal('unlock'), name: probeName }),
  v.object({ act: v.literal('tail'), name: probeName, from: count }),
  v.object({ act: v.literal('close') }),
]);

/** One verb: who calls with what, and what comes back. */
export const MESSAGES = {
  /** Controller, operator, worker: who are you, and a fresh nonce of this boot. */
  challenge: {
    request: v.object({ purpose: v.picklist(['ticket', 'hello']) }),
    response: v.object({
      protocol: v.object({ major: v.literal(PROTOCOL.major), minor: whole(0, 65535) }),
      version: text(64),
      node: nodeName,
      instance: instanceName,
      bootId: text(LIMITS.bootIdBytesMax),
      /** Raw Ed25519 public key that signs this worker's certificates of cleanliness, hex. */
      workerKey: hex(LIMITS.workerKeyBytes),
      nonce: hex(LIMITS.nonceBytes),
      wallMs: count,
    }),
  },
  /** Controller: check everything and set up the sandbox (no process of the job). Idempotent per lease. */
  prepare: {
    request: v.object({ ticket, launch: v.optional(stepId), resources: v.optional(Resources) }),
    response: v.object({
      unit: text(255),
      invocationId: text(64),
      created: v.boolean(),
      workspace: v.nullable(absolutePath),
      mounts: v.pipe(v.array(Mount), v.maxLength(LIMITS.leaseScopesMax)),
      resources: v.optional(Resources),
    }),
  },
  /** Controller: a newer ticket of the same lease; re-arms the deadline. */
  renew: {
    request: v.object({ ticket }),
    response: v.object({ remainingMs: count }),
  },
  /** Controller: end what one launch owns, or every step and the sandbox. Idempotent. */
  stop: {
    request: v.object({ lease: leaseNumber, launch: v.optional(stepId) }),
    response: v.object({ stopped: v.boolean() }),
  },
  /** Controller: never start anything of this lease again, end it, look for anything left, and certify. */
  drain: {
    request: v.object({
      epoch,
      lease: leaseNumber,
      uid,
      job: jobId,
      attempt: whole(0, 999_999),
      nonce: hex(LIMITS.nonceBytes),
    }),
    response: v.object({ certificate: text(LIMITS.certificateCharsMax) }),
  },
  /** Controller, operator: what is on this node. */
  status: {
    request: v.object({}),
    response: v.object({
      node: nodeName,
      bootId: text(LIMITS.bootIdBytesMax),
      sandboxes: v.pipe(
        v.array(
          v.object({
            lease: leaseNumber,
            job: jobId,
            attempt: whole(0, 999_999),
            uid,
            unit: text(255),
            state: v.picklist(['preparing', 'ready', 'stopping', 'lost', 'dirty']),
            remainingMs: count,
            steps: v.pipe(
              v.array(v.object({ step: stepId, kind: text(16), unit: text(255) })),
              v.maxLength(LIMITS.stepsPerSandboxMax),
            ),
          }),
        ),
        v.maxLength(LIMITS.sandboxesMax),
      ),
    }),
  },
  /** Controller, operator, local root: leases that have left something here without a record. New in 1.2. */
  strays: {
    request: v.object({}),
    response: v.object({
      node: nodeName,
      leases: v.pipe(v.array(leaseNumber), v.maxLength(LIMITS.sandboxesMax)),
    }),
  },
  /** Controller, operator, local root: what the worker has counted since it started. New in 1.1. */
  metrics: {
    request: v.object({}),
    response: v.object({
      node: nodeName,
      families: v.pipe(
        v.array(
          v.object({
            name: v.pipe(v.string(), v.regex(/^xce_worker_[a-z_]{1,64}$/)),
            type: v.picklist(['counter', 'gauge']),
            help: text(256),
            samples: v.pipe(
              v.array(
                v.object({
                  labels: v.record(v.pipe(v.string(), v.regex(/^[a-z_]{1,32}$/)), text(64)),
                  value: v.pipe(v.number(), v.finite()),
                }),
              ),
              v.maxLength(LIMITS.metricSamplesMax),
            ),
          }),
        ),
        v.maxLength(LIMITS.metricFamiliesMax),
      ),
    }),
  },
  /** Controller to controller: begin a probe of the storage of the lease log. Not served by workers. */
  'probe-begin': {
    request: v.object({
      probe: probeId,
      instance: instanceName,
      type: text(LIMITS.mountWordBytesMax),
      client: text(LIMITS.probeClientCharsMax),
    }),
    response: v.object({}),
  },
  /** Controller to controller: do this, one after the other, in your first or your second process. */
  'probe-act': {
    request: v.object({
      probe: probeId,
      by: v.picklist(['first', 'second']),
      actions: v.pipe(v.array(ProbeAction), v.maxLength(LIMITS.probeActionsMax)),
    }),
    response: v.object({
      results: v.pipe(
        v.array(v.object({ done: v.boolean(), text: v.nullable(text(LIMITS.probeTextBytesMax)) })),
        v.maxLength(LIMITS.probeActionsMax),
      ),
    }),
  },
  /** Controller to controller: kill your second process. */
  'probe-kill': {
    request: v.object({ probe: probeId }),
    response: v.object({}),
  },
  /** Controller to controller: what came of it. */
  'probe-end': {
    request: v.object({
      probe: probeId,
      kept: v.nullable(v.pipe(v.array(text(64)), v.maxLength(64))),
      problem: v.nullable(text(4096)),
    }),
    response: v.object({}),
  },
} as const;

/** Verbs whose answer is a stream of frames in both directions (see frame.ts). */
export const STREAMS = {
  /** Controller: start one step of a prepared sandbox. */
  step: v.object({
    ticket,
    launch: v.optional(stepId),
    step: stepId,
    /** 'task': a plain command. 'head': prterun or mpiexec, whose daemons come through the agent. */
    kind: v.picklist(['task', 'head']),
    argv,
    environment,
    directory: v.nullable(base64(LIMITS.pathBytesMax)),
    stdin: v.boolean(),
  }),
  /** The job itself, on its sandbox's socket: start a launcher daemon on another node of the job. */
  daemon: v.object({ node: text(LIMITS.nodeNameCharsMax), argv, environment }),
  /** Worker of a node of the same lease: start a launcher daemon here. */
  spawn: v.object({ lease: leaseNumber, epoch, uid, launch: v.optional(stepId), argv, environment }),
} as const;

export type UnaryVerb = keyof typeof MESSAGES;
/** Those that one controller asks another, and no worker. */
export type ProbeVerb = Extract<UnaryVerb, `probe-${string}`>;
export type StreamVerb = keyof typeof STREAMS;
export type Verb = UnaryVerb | StreamVerb;
export type RequestOf<V extends Verb> = V extends UnaryVerb
  ? v.InferOutput<(typeof MESSAGES)[V]['request']>
  : V extends StreamVerb
    ? v.InferOutput<(typeof STREAMS)[V]>
    : never;
export type ResponseOf<V extends UnaryVerb> = v.InferOutput<(typeof MESSAGES)[V]['response']>;

/** Control events inside a stream, server to client, one JSON document per frame of channel `control`. */
export const StreamEvent = v.variant('event', [
  v.object({ event: v.literal('started'), unit: text(255) }),
  /** A launcher daemon of this head started on, or ended on, another node (as its worker reported it). */
  v.object({ event: v.literal('daemon-started'), node: nodeName, unit: text(255) }),
  v.object({ event: v.literal('daemon-ended'), node: nodeName, outcome: StepResult }),
  v.object({ event: v.literal('ended'), outcome: StepResult }),
]);
export type StreamEvent = v.InferOutput<typeof StreamEvent>;

/** Control commands inside a stream, client to server. */
export const StreamCommand = v.variant('command', [
  v.object({ command: v.literal('signal'), signal: whole(1, 64) }),
]);
export type StreamCommand = v.InferOutput<typeof StreamCommand>;

/** How every refusal crosses the wire: a code of the table and one line; never a stack. */
export const WireError = v.object({
  code: v.pipe(
    v.string(),
    v.check(isErrorCode, 'not an error code'),
    v.transform((value) => value as ErrorCode),
  ),
  message: text(4096),
  /** As in ErrorFacts. */
  at: v.optional(text(4096)),
  unchanged: v.optional(text(4096)),
  next: v.optional(text(4096)),
  detail: v.optional(v.record(v.string(), v.unknown())),
});
export type WireError = v.InferOutput<typeof WireError>;
