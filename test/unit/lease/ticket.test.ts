import { createPublicKey, generateKeyPairSync, sign } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import type { InstanceName } from '../../../src/base/ids.ts';
import { LIMITS } from '../../../src/base/limits.ts';
import type { AllocateRequest } from '../../../src/lease/allocate.ts';
import { decideBind } from '../../../src/lease/rules.ts';
import {
  checkTicket,
  claimsOfLease,
  createTicketSigner,
  openTicket,
  type TicketClaims,
  type TicketContext,
  ticketBytesOf,
} from '../../../src/lease/ticket.ts';
import {
  at,
  attempt,
  epoch,
  facts,
  IDENTITY,
  job,
  leaseNumber,
  node,
  nodes,
  request,
  Scene,
  T0,
  uid,
} from './scene.ts';

const { privateKey, publicKey } = generateKeyPairSync('ed25519');

const claims: TicketClaims = {
  ...IDENTITY,
  job: job('18014398509481985'),
  attempt: attempt(0),
  lease: leaseNumber(7),
  epoch: epoch(3),
  uid: uid(70_001),
  submitterUid: 1001,
  submitterGid: 100,
  node: node('n1'),
  nodes: nodes('n1', 'n2'),
  nonce: '0123456789abcdef0123456789abcdef',
  ttlMs: 60_000,
  issuedWallMs: T0,
  roots: [{ path: '/scratch/Müller' }],
  workspace: { storage: 'scratch', path: '/scratch/xce' },
};
const text = createTicketSigner(claims, privateKey)(claims);
const codeOfText = (changed: string, key = publicKey) => {
  const opened = openTicket(changed, key);
  return opened.ok ? 'accepted' : opened.code;
};

/** Signs JSON that a signer would not make. */
const signJson = (json: string, domain = 'xce-sandbox ticket 1\0'): string => {
  const bytes = Buffer.from(json);
  const signature = sign(null, Buffer.concat([Buffer.from(domain), bytes]), privateKey);
  return `xce1.${bytes.toString('base64url')}.${signature.toString('base64url')}`;
};
const json = JSON.stringify(claims);
const { uid: claimedUid, ...others } = claims;

describe('the text of a ticket', () => {
  test('comes back as the claims it was made of', () => {
    expect(openTicket(text, publicKey)).toEqual({ ok: true, value: claims });
    expect(signJson(json)).toBe(text);
    expect(openTicket(text, createPublicKey(privateKey))).toMatchObject({ ok: true });
  });

  test('is refused with any character changed, added or left out', () => {
    for (let index = 0; index < text.length; index += 1) {
      const other = text[index] === 'A' ? 'B' : 'A';
      const changed = `${text.slice(0, index)}${other}${text.slice(index + 1)}`;
      expect(['ticket-malformed', 'ticket-signature']).toContain(codeOfText(changed));
      expect(codeOfText(text.slice(0, index) + text.slice(index + 1))).not.toBe('accepted');
    }
  });

  test.each([
    ['nothing', ''],
    ['another prefix', text.replace('xce1.', 'xcc1.')],
    ['a blank at its end', `${text} `],
    ['a newline at its end', `${text}\n`],
    ['padding', `${text}==`],
    ['a third part', `${text}.AAAA`],
    ['no signature', text.slice(0, text.lastIndexOf('.'))],
    ['an empty signature', `${text.slice(0, text.lastIndexOf('.'))}.`],
    ['base64 instead of base64url', `${text.slice(0, 10)}+${text.slice(11)}`],
    ['a line break inside', `${text.slice(0, 20)}\n${text.slice(20)}`],
    ['more than a million characters', `xce1.${'A'.repeat(1 << 20)}.AAAA`],
  ])('is malformed with %s', (_, changed) => {
    expect(codeOfText(changed)).toBe('ticket-malformed');
  });

  test('has no spare bits: the last character cannot be another with the same bytes', () => {
    const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
    const accepted = [...alphabet].filter((last) => codeOfText(text.slice(0, -1) + last) === 'accepted');
    expect(accepted).toEqual([text.at(-1)]);
  });

  test('is refused when another key or another form signed it', () => {
    expect(codeOfText(text, generateKeyPairSync('ed25519').publicKey)).toBe('ticket-signature');
    expect(codeOfText(signJson(json, 'xce-sandbox certificate 1\0'))).toBe('ticket-signature');
    expect(codeOfText(signJson(json, ''))).toBe('ticket-signature');
  });

  test.each([
    ['an unknown claim', json.replace('{', '{"extra":1,')],
    ['a claim twice', json.replace('{', '{"uid":70002,')],
    ['a claim missing', json.replace('"epoch":3,', '')],
    ['claims in another order', JSON.stringify({ uid: claimedUid, ...others })],
    ['blanks', json.replace(':', ': ')],
    ['a number as text', json.replace('"uid":70001', '"uid":"70001"')],
    ['a job id as a number', json.replace('"18014398509481985"', '18014398509481985')],
    ['a number in another notation', json.replace('"epoch":3', '"epoch":3.0')],
    ['a fraction', json.replace('"epoch":3', '"epoch":3.5')],
    ['uid 0', json.replace('"uid":70001', '"uid":0')],
    ['submitter 0', json.replace('"submitterUid":1001', '"submitterUid":0')],
    ['an upper-case node', json.replace('"node":"n1"', '"node":"N1"')],
    ['a relative path', json.replace('/scratch/xce', 'scratch/xce')],
    ['a nonce of another length', json.replace('0123456789abcdef"', '"')],
    ['no object', '[]'],
    ['no JSON', '{'],
    ['an escape where none is needed', json.replace('Müller', 'M\\u00fcller')],
  ])('is malformed with %s, whatever its signature', (_, changed) => {
    expect(changed).not.toBe(json);
    expect(codeOfText(signJson(changed))).toBe('ticket-malformed');
  });

  test('of a lease of 8000 nodes fits', () => {
    const many = Array.from({ length: 8000 }, (_, index) => node(`node${index}.hpc.example`));
    const sign = createTicketSigner({ ...claims, nodes: many }, privateKey);
    const own = { node: node('node7.hpc.example'), nonce: 'f'.repeat(32) };
    expect(openTicket(sign(own), publicKey)).toEqual({ ok: true, value: { ...claims, nodes: many, ...own } });
    // Asked for again, not kept.
    expect(sign(own)).toBe(sign(own));
    // A step carries it beside the largest command and environment.
    const head = { ticket: sign(own), argv: '', environment: '' };
    const largest = JSON.stringify(head).length + ((LIMITS.argvBytesMax + LIMITS.envBytesMax) * 4) / 3;
    expect(largest).toBeLessThan(LIMITS.messageBytesMax);
  });

  test('whose names are too long together is refused, whatever a lease may have', () => {
    const many = Array.from({ length: LIMITS.leaseNodesMax }, (_, index) =>
      node(`n${index}.${'a'.repeat(57)}`),
    );
    const sign = createTicketSigner({ ...claims, nodes: many }, privateKey);
    expect(() => sign(claims)).toThrow(expect.objectContaining({ code: 'too-large' }));
  });

  /** A name of so many characters; each number gives another. */
  const longNode = (index: number, characters: number) =>
    node(
      `${String(index).padStart(5, '0')}.${'a.'.repeat(LIMITS.nodeNameCharsMax)}`
        .slice(0, characters - 1)
        .concat('z'),
    );
  const LONGEST_PATH = (index: number) => `/${String(index).padStart(3, '0')}${'\u0001'.repeat(1000)}`;

  /** Names that fill what a ticket has for them to the last byte. */
  const fillWith = (characters: number, paths: number): AllocateRequest => {
    const roots = Array.from({ length: paths }, (_, index) => ({ path: LONGEST_PATH(index), storage: 's' }));
    const wanted = request({ roots, workspace: { storage: '\u0001'.repeat(64), path: '/w' } });
    const free = LIMITS.leaseTicketBytesMax - ticketBytesOf({ ...wanted, nodes: [] }) + 1;
    const count = Math.floor(free / (characters + 3));
    const rest = free % (characters + 3);
    const names = Array.from({ length: count }, (_, index) => longNode(index, characters));
    if (rest > 0) names[0] = longNode(0, Math.min(characters + rest, LIMITS.nodeNameCharsMax));
    return { ...wanted, nodes: names };
  };

  test.each([
    ['the most nodes', 45, 0],
    ['the longest names', 250, 0],
    ['paths that JSON makes longer', 60, 64],
  ])(
    'of a lease of %s, as many as are granted, is signed whatever else it claims',
    (_, characters, paths) => {
      const wanted = { ...fillWith(characters, paths), job: job('"'.repeat(LIMITS.jobIdBytesMax)) };
      expect(ticketBytesOf(wanted)).toBeGreaterThan(LIMITS.leaseTicketBytesMax - 300);
      const scene = new Scene();
      const lease = scene.allocate({ ...wanted, ttlMs: LIMITS.ttlMsMax });
      const view = scene.run(decideBind(scene.state, facts(), { lease: lease.number }, []));
      const shared = claimsOfLease(view, {
        cluster: '\u0001'.repeat(LIMITS.nodeNameCharsMax),
        instance: 'i'.repeat(LIMITS.instanceCharsMax) as InstanceName,
        epoch: epoch(Number.MAX_SAFE_INTEGER),
        issuedWallMs: Number.MAX_SAFE_INTEGER,
      });
      const own = { node: longNode(0, LIMITS.nodeNameCharsMax), nonce: 'f'.repeat(32) };
      const most = {
        ...shared,
        attempt: attempt(999_999),
        lease: leaseNumber(Number.MAX_SAFE_INTEGER),
        uid: uid(2_147_483_647),
        ...{ submitterUid: 0xffff_ffff, submitterGid: 0xffff_ffff },
      };
      const signed = createTicketSigner(most, privateKey)(own);
      expect(signed.length).toBeLessThanOrEqual(LIMITS.ticketCharsMax);
      const more = {
        ...wanted,
        job: job('other'),
        nodes: [...wanted.nodes, longNode(99_999, 250), longNode(99_998, 250)],
      };
      expect(() => scene.allocate(more)).toThrow(expect.objectContaining({ code: 'too-large' }));
    },
  );

  test('is signed for a node and a nonce, and nothing that is neither', () => {
    const sign = createTicketSigner(claims, privateKey);
    expect(() => sign({ ...claims, nonce: 'xyz' })).toThrow(expect.objectContaining({ code: 'bug' }));
  });
});

describe('a ticket on its node', () => {
  const context: TicketContext = {
    ...IDENTITY,
    node: node('n1'),
    seen: { uid: uid(70_001), epoch: 3, lease: 7, drained: 0 },
    nonceIssuedMs: 1000,
    nowMonotonicMs: 1000,
  };
  const check = (change: Partial<TicketClaims>, where: Partial<TicketContext> = {}) => {
    const verdict = checkTicket({ ...claims, ...change }, { ...context, ...where });
    return verdict.ok ? verdict.value.remainingMs : verdict.code;
  };
  const seen = (epochSeen: number, leaseSeen: number, drained = 0) => ({
    seen: { uid: uid(70_001), epoch: epochSeen, lease: leaseSeen, drained },
  });

  test('lasts its ttl from the moment of its nonce, by the monotonic clock', () => {
    expect(check({})).toBe(60_000);
    expect(check({}, { nowMonotonicMs: 31_000 })).toBe(30_000);
    expect(check({}, { nowMonotonicMs: 60_999 })).toBe(1);
    expect(check({}, { nowMonotonicMs: 61_000 })).toBe('ticket-expired');
  });

  test('does not depend on the wall clock of who signed it', () => {
    expect(check({ issuedWallMs: T0 - 310_000 })).toBe(60_000);
    expect(check({ issuedWallMs: T0 + 310_000 })).toBe(60_000);
  });

  test.each<[string, string, Partial<TicketClaims>, Partial<TicketContext>]>([
    ['of another cluster', 'ticket-cluster', { cluster: 'other' }, {}],
    ['of another instance', 'ticket-cluster', { instance: 'nested' as typeof IDENTITY.instance }, {}],
    ['for another node', 'ticket-node', { node: node('n2') }, {}],
    ['for a node that is not of the job', 'ticket-node', { nodes: nodes('n2') }, {}],
    ['of a lease drained here', 'ticket-tombstone', {}, seen(3, 7, 7)],
    ['of a lease drained here, with a newer epoch', 'ticket-tombstone', { epoch: epoch(9) }, seen(3, 7, 7)],
    ['of an older epoch', 'ticket-epoch', {}, seen(4, 7)],
    ['of an older epoch for a newer lease', 'ticket-epoch', { lease: leaseNumber(9) }, seen(4, 7)],
    ['of an older lease', 'ticket-lease', {}, seen(3, 8)],
    ['with a nonce of another boot or worker', 'ticket-nonce', {}, { nonceIssuedMs: undefined }],
    [
      'sent again after its lease was drained',
      'ticket-tombstone',
      {},
      { ...seen(3, 7, 7), nonceIssuedMs: undefined },
    ],
  ])('%s is refused with %s', (_, code, change, where) => {
    expect(check(change, where)).toBe(code);
  });

  test('of a newer epoch and lease is taken, and the first of a uid as well', () => {
    expect(check({}, seen(2, 6, 6))).toBe(60_000);
    expect(check({}, { seen: undefined })).toBe(60_000);
  });
});

test('the claims of a lease name its nodes without helpers and last as long as the lease', () => {
  const scene = new Scene();
  const lease = scene.allocate(request({ roots: [{ path: '/scratch/out', storage: 'scratch' }] }));
  scene.apply({ kind: 'join', lease: lease.number, node: node('io1') });
  const view = scene.run(decideBind(scene.state, facts(at(20_000)), { lease: lease.number }, []));
  const made = claimsOfLease(view, { ...IDENTITY, epoch: epoch(3), issuedWallMs: T0 });
  const own = { node: node('n2'), nonce: claims.nonce };
  expect(openTicket(createTicketSigner(made, privateKey)(own), publicKey)).toEqual({
    ok: true,
    value: { ...made, ...own },
  });
  expect(made).toMatchObject({
    job: '42',
    uid: 70_000,
    nodes: ['n1', 'n2'],
    ttlMs: 40_000,
    roots: [{ path: '/scratch/out' }],
  });
});
