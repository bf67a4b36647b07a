import { describe, expect, test } from 'vitest';
import { LIMITS } from '../../../src/base/limits.ts';
import { openCertificate, signCertificate } from '../../../src/lease/certificate.ts';
import type { LeaseDecision, RuleFacts } from '../../../src/lease/decision.ts';
import type { MountFacts } from '../../../src/lease/event.ts';
import { proofOf } from '../../../src/lease/lease.ts';
import type { LeaseRef } from '../../../src/lease/reference.ts';
import { unwrap } from '../../../src/lease/refusal.ts';
import {
  decideBeginNormalise,
  decideBind,
  decideCertify,
  decideDrain,
  decideExpire,
  decideFinishRoot,
  decideFree,
  decideJoin,
  decideQuarantine,
  decideRecordMounts,
  decideRenew,
  decideRetry,
} from '../../../src/lease/rules.ts';
import type { LeaseState } from '../../../src/lease/state.ts';
import {
  at,
  BOOT,
  bytesOf,
  codeOf,
  epoch,
  facts,
  IDENTITY,
  job,
  leaseNumber,
  makeWorker,
  node,
  nodes,
  OTHER_BOOT,
  request,
  Scene,
  T0,
} from './scene.ts';

const ref = { lease: leaseNumber(1) };
const seed = Buffer.from('seed');
const why = { code: 'operator', text: 'why', node: null } as const;

const makeScene = () => {
  const scene = new Scene();
  return { scene, lease: scene.allocate(request()) };
};

/** The code of a refusal, and that neither the state nor the log changed for it. */
const refusal = (scene: Scene, decision: () => LeaseDecision<unknown>): string => {
  const before = bytesOf(scene.state);
  const count = scene.log.length;
  const code = codeOf(() => scene.run(decision()));
  if (code !== 'no refusal') {
    expect(bytesOf(scene.state).equals(before)).toBe(true);
    expect(scene.log).toHaveLength(count);
  }
  return code;
};

describe('renew', () => {
  const renew = (scene: Scene, how: RuleFacts, ttlMs = 60_000) =>
    refusal(scene, () => decideRenew(scene.state, how, ref, ttlMs));

  test('gives a new term from now on, also to a later controller', () => {
    const { scene, lease } = makeScene();
    const view = scene.run(decideRenew(scene.state, facts(at(50_000), { epoch: epoch(5) }), ref, 60_000));
    expect(view.remainingMs).toBe(60_000);
    expect(lease.term.issued.wallMs).toBe(T0 + 50_000);
    expect(scene.state.epoch).toBe(5);
    expect(renew(scene, facts(at(51_000), { epoch: epoch(4) }))).toBe('log-fenced');
  });

  test('is refused after the end, by the clock of the host that granted', () => {
    const { scene } = makeScene();
    expect(renew(scene, facts(at(60_000)))).toBe('lease-expired');
    expect(renew(scene, facts(at(59_999, { wallMs: T0 + 9_000_000 })))).toBe('no refusal');
  });

  test('gives the holder the benefit where the clock cannot tell', () => {
    const { scene } = makeScene();
    const late = at(9_000_000, { bootId: OTHER_BOOT });
    expect(renew(scene, facts({ ...late, skewMs: 6000 }))).toBe('no refusal');
    const { scene: other } = makeScene();
    expect(renew(other, facts(late))).toBe('lease-expired');
  });

  test('is refused for a lease that drains or waits in quarantine, and for a wrong ttl', () => {
    const { scene, lease } = makeScene();
    expect(renew(scene, facts(), LIMITS.ttlMsMax + 1)).toBe('usage');
    scene.drain(lease);
    expect(renew(scene, facts())).toBe('lease-state');
    scene.run(decideQuarantine(scene.state, facts(), ref, why));
    expect(renew(scene, facts())).toBe('lease-state');
  });
});

describe('bind', () => {
  test('records each worker once', () => {
    const { scene } = makeScene();
    scene.bind(ref, nodes('n1', 'n2'));
    expect(scene.log).toHaveLength(3);
    scene.bind(ref, nodes('n1', 'n2'));
    expect(scene.log).toHaveLength(3);
  });

  test('takes the same key with another boot, and no other key', () => {
    const { scene, lease } = makeScene();
    scene.bind(ref, nodes('n1'));
    scene.worker(node('n1')).bootId = BOOT;
    scene.bind(ref, nodes('n1'));
    expect(lease.nodes.get(node('n1'))?.binding?.bootId).toBe(BOOT);
    scene.workers.set(node('n1'), makeWorker());
    const again = () => decideBind(scene.state, facts(), ref, scene.bindings(nodes('n1', 'n2')));
    expect(refusal(scene, again)).toBe('worker-key');
    expect(lease.nodes.get(node('n2'))?.binding).toBeNull();
  });

  test.each<[string, string, (scene: Scene) => LeaseDecision<unknown>]>([
    ['a foreign node', 'node-unknown', (s) => decideBind(s.state, facts(), ref, s.bindings(nodes('n3')))],
    ['a node twice', 'node-list', (s) => decideBind(s.state, facts(), ref, s.bindings(nodes('n1', 'n1')))],
    [
      'a key that is none',
      'protocol',
      (s) => decideBind(s.state, facts(), ref, [{ node: node('n1'), workerKey: 'aa', bootId: BOOT }]),
    ],
    [
      'no boot id',
      'protocol',
      (s) => decideBind(s.state, facts(), ref, [{ node: node('n1'), workerKey: 'a'.repeat(64), bootId: '' }]),
    ],
    ['an expired lease', 'lease-expired', (s) => decideBind(s.state, facts(at(60_000)), ref, [])],
    ['an old epoch', 'log-fenced', (s) => decideBind(s.state, facts(at(0), { epoch: epoch(0) }), ref, [])],
    ['no such lease', 'lease-missing', (s) => decideBind(s.state, facts(), { lease: leaseNumber(2) }, [])],
  ])('refuses %s', (_, code, decision) => {
    const { scene } = makeScene();
    expect(refusal(scene, () => decision(scene))).toBe(code);
  });
});

describe('mounts', () => {
  const mount: MountFacts = { path: '/scratch/xce', source: 'srv:/vol', type: 'nfs4', fsid: '0' };
  const record = (scene: Scene, name: string, ...mounts: MountFacts[]) =>
    refusal(scene, () => decideRecordMounts(scene.state, facts(), ref, [{ node: node(name), mounts }]));

  test('are recorded once and must be the same on every node', () => {
    const { scene, lease } = makeScene();
    expect(record(scene, 'n1', mount)).toBe('no refusal');
    const count = scene.log.length;
    expect(record(scene, 'n2', mount)).toBe('no refusal');
    expect(scene.log).toHaveLength(count);
    expect(record(scene, 'n2', { ...mount, source: '/dev/sda1' })).toBe('mount-changed');
    expect(record(scene, 'n2', { ...mount, fsid: '1' })).toBe('mount-changed');
    expect(lease.mounts).toEqual([{ node: 'n1', mount }]);
  });

  test('of several nodes at once are compared as well, and recorded only if all fit', () => {
    const { scene, lease } = makeScene();
    const seen = (fsid: string) => [
      { node: node('n1'), mounts: [mount] },
      { node: node('n2'), mounts: [{ ...mount, fsid }] },
    ];
    const decide = (fsid: string) => () => decideRecordMounts(scene.state, facts(), ref, seen(fsid));
    const count = scene.log.length;
    expect(refusal(scene, decide('1'))).toBe('mount-changed');
    expect(scene.log).toHaveLength(count);
    expect(refusal(scene, decide('0'))).toBe('no refusal');
    expect(lease.mounts).toEqual([{ node: 'n1', mount }]);
  });

  test('of one node must not contradict each other', () => {
    const { scene } = makeScene();
    expect(record(scene, 'n1', mount, { ...mount, type: 'ext4' })).toBe('mount-changed');
  });

  test('of other paths or nodes are refused, and what cannot be recorded', () => {
    const { scene } = makeScene();
    expect(record(scene, 'n1', { ...mount, path: '/home' })).toBe('protocol');
    expect(record(scene, 'n3', mount)).toBe('node-unknown');
    expect(record(scene, 'n1', { ...mount, type: 'x'.repeat(65) })).toBe('protocol');
    expect(record(scene, 'n1', { ...mount, source: '\ud800' })).toBe('protocol');
  });
});

describe('drain', () => {
  test('asks every node with a nonce of its own, also after expiry', () => {
    const { scene, lease } = makeScene();
    const bindings = scene.bindings(nodes('n1', 'n2'));
    const drain = scene.run(decideDrain(scene.state, facts(at(99_000)), ref, { bindings, seed }));
    expect(drain.lease.status).toBe('draining');
    expect(drain.nonces.map((one) => one.node)).toEqual(['n1', 'n2']);
    expect(new Set(drain.nonces.map((one) => one.nonce)).size).toBe(2);
    for (const { node: name, nonce } of drain.nonces) {
      expect(nonce).toMatch(/^[0-9a-f]{32}$/);
      expect(lease.nodes.get(name)?.nonce).toBe(nonce);
    }
  });

  test('again asks only who has not certified, with new nonces', () => {
    const { scene, lease } = makeScene();
    const [first, second] = scene.drain(lease);
    if (first === undefined || second === undefined) throw new Error('two nodes were asked');
    scene.certify(lease, [{ node: first.node, text: scene.certificate(lease, first.node, first.nonce) }]);
    const again = scene.run(
      decideDrain(scene.state, facts(), ref, { bindings: [], seed: Buffer.from('other') }),
    );
    expect(again.nonces.map((one) => one.node)).toEqual([second.node]);
    expect(again.nonces[0]?.nonce).not.toBe(second.nonce);
  });

  test('with everybody certified writes nothing', () => {
    const { scene, lease } = makeScene();
    scene.clean(lease);
    const count = scene.log.length;
    expect(scene.drain(lease)).toEqual([]);
    expect(scene.log).toHaveLength(count);
  });

  test('names a node with another key and drains the rest', () => {
    const { scene, lease } = makeScene();
    scene.bind(ref, nodes('n1', 'n2'));
    scene.workers.set(node('n1'), makeWorker());
    scene.worker(node('n2')).bootId = BOOT;
    const bindings = scene.bindings(nodes('n1', 'n2', 'n3'));
    const drain = scene.run(decideDrain(scene.state, facts(), ref, { bindings, seed }));
    expect(drain.foreign.map((one) => one.node)).toEqual(['n1', 'n3']);
    expect(lease.nodes.get(node('n2'))?.binding?.bootId).toBe(BOOT);
  });

  test('of a quarantined lease is a retry, and the other way round', () => {
    const { scene } = makeScene();
    const drain = () => decideDrain(scene.state, facts(), ref, { bindings: [], seed });
    const retry = () => decideRetry(scene.state, facts(), ref, { bindings: [], seed });
    expect(refusal(scene, retry)).toBe('lease-state');
    scene.run(decideQuarantine(scene.state, facts(), ref, why));
    expect(refusal(scene, drain)).toBe('lease-state');
    expect(scene.run(retry()).lease.status).toBe('draining');
  });
});

describe('certify', () => {
  const drained = () => {
    const { scene, lease } = makeScene();
    const [asked] = scene.drain(lease);
    if (asked === undefined) throw new Error('a node was asked');
    const { key, hex, bootId } = scene.worker(asked.node);
    const claims = { ...IDENTITY, lease: lease.number, uid: lease.uid, wallMs: T0, bootId, ...asked };
    const offer = (change: Partial<typeof claims>, signer = { key, hex }) =>
      scene.run(
        decideCertify(
          scene.state,
          facts(),
          ref,
          [
            {
              node: asked.node,
              certificate: unwrap(
                openCertificate(signCertificate({ ...claims, ...change }, signer.key), signer.hex),
              ),
            },
          ],
          IDENTITY,
        ),
      );
    return { scene, lease, asked, claims, offer };
  };

  test('takes the answer to the newest nonce, once', () => {
    const { scene, lease, asked, offer } = drained();
    const count = scene.log.length;
    expect(offer({}).refused).toEqual([]);
    expect(lease.nodes.get(asked.node)?.certificate).toMatch(/^[0-9a-f]{64}$/);
    expect(offer({}).refused).toEqual([]);
    expect(scene.log).toHaveLength(count + 1);
    expect(offer({ wallMs: T0 + 1 }).refused[0]?.problem).toContain('has certified already');
  });

  test.each([
    ['cluster', { cluster: 'other' }],
    ['instance', { instance: 'nested' as typeof IDENTITY.instance }],
    ['lease', { lease: leaseNumber(2) }],
    ['uid', { uid: 70_001 as never }],
    ['node', { node: node('n2') }],
    ['boot', { bootId: BOOT }],
    ['nonce', { nonce: '0'.repeat(32) }],
  ])('refuses one of another %s', (_, change) => {
    const { lease, asked, offer } = drained();
    expect(offer(change).refused.map((one) => one.node)).toEqual([asked.node]);
    expect(lease.nodes.get(asked.node)?.certificate).toBeNull();
  });

  test('refuses one of another key, and one that answers an earlier request', () => {
    const { scene, lease, asked, offer } = drained();
    const stranger = makeWorker();
    expect(offer({}, stranger).refused[0]?.problem).toContain('another key');
    const next = { bindings: scene.bindings(nodes('n1', 'n2')), seed: Buffer.from('other') };
    scene.run(decideDrain(scene.state, facts(), ref, next));
    expect(offer({}).refused[0]?.problem).toContain('nonce');
    expect(lease.nodes.get(asked.node)?.certificate).toBeNull();
  });

  test('records the good ones beside a bad one', () => {
    const { scene, lease } = makeScene();
    const nonces = scene.drain(lease);
    const texts = nonces.map(({ node: name, nonce }, index) => ({
      node: name,
      text: scene.certificate(lease, name, index === 0 ? '0'.repeat(32) : nonce),
    }));
    expect(scene.certify(lease, texts).refused.map((one) => one.node)).toEqual(['n1']);
    expect(lease.nodes.get(node('n2'))?.certificate).not.toBeNull();
  });

  test('refuses a node that was never bound or asked', () => {
    const { scene, lease } = makeScene();
    const nonce = '0'.repeat(32);
    const text = { node: node('n1'), text: scene.certificate(lease, node('n1'), nonce) };
    expect(codeOf(() => scene.certify(lease, [text]))).toBe('lease-state');
    scene.run(decideDrain(scene.state, facts(), ref, { bindings: [], seed }));
    expect(scene.certify(lease, [text]).refused[0]?.problem).toContain('bound');
    const foreign = { node: node('n9'), text: scene.certificate(lease, node('n9'), nonce) };
    expect(scene.certify(lease, [foreign]).refused[0]?.problem).toContain('n9');
  });
});

describe('normalise and free', () => {
  const begin = (state: LeaseState) => decideBeginNormalise(state, facts(), ref);
  const free = (state: LeaseState, how = facts()) => decideFree(state, how, ref);
  const proofIn = (state: LeaseState): string => {
    const lease = state.leases.get(ref.lease);
    return lease === undefined ? 'none' : proofOf(lease);
  };
  const finish = (state: LeaseState, left = 0, path = '/scratch/xce') =>
    decideFinishRoot(state, facts(), ref, { path, proof: proofIn(state), walked: 5, changed: 2, left });

  test('begin only after the last certificate', () => {
    const { scene, lease } = makeScene();
    expect(refusal(scene, () => begin(scene.state))).toBe('lease-state');
    const [first, second] = scene.drain(lease);
    expect(refusal(scene, () => begin(scene.state))).toBe('release-blocked');
    for (const asked of [first, second]) {
      if (asked === undefined) throw new Error('two nodes were asked');
      expect(refusal(scene, () => begin(scene.state))).toBe('release-blocked');
      scene.certify(lease, [{ node: asked.node, text: scene.certificate(lease, asked.node, asked.nonce) }]);
    }
    expect(scene.run(begin(scene.state)).lease.status).toBe('normalising');
    const count = scene.log.length;
    expect(scene.run(begin(scene.state)).lease.status).toBe('normalising');
    expect(scene.log).toHaveLength(count);
  });

  test('a uid is free only after a verify pass of the workspace and every root found nothing', () => {
    const scene = new Scene();
    const lease = scene.allocate(request({ roots: [{ path: '/scratch/out', storage: 'scratch' }] }));
    scene.clean(lease);
    expect(refusal(scene, () => free(scene.state))).toBe('lease-state');
    expect(refusal(scene, () => finish(scene.state))).toBe('lease-state');
    scene.run(begin(scene.state));
    expect(refusal(scene, () => free(scene.state))).toBe('release-blocked');
    expect(refusal(scene, () => finish(scene.state, 1))).toBe('normalise-partial');
    expect(refusal(scene, () => finish(scene.state, 0, '/home'))).toBe('normalise-refused');
    scene.run(finish(scene.state));
    expect(refusal(scene, () => free(scene.state))).toBe('release-blocked');
    scene.run(finish(scene.state, 0, '/scratch/out'));
    expect(scene.run(free(scene.state))).toEqual({ uid: lease.uid });
    expect(refusal(scene, () => free(scene.state))).toBe('lease-ended');
  });

  test('a helper that joined for the walk must certify before the uid is free', () => {
    const { scene, lease } = makeScene();
    scene.clean(lease);
    scene.run(begin(scene.state));
    scene.run(decideJoin(scene.state, facts(), ref, node('io1')));
    scene.run(finish(scene.state));
    expect(refusal(scene, () => free(scene.state))).toBe('release-blocked');
    const [asked, ...others] = scene.drain(lease);
    expect(others).toEqual([]);
    expect(asked?.node).toBe('io1');
    expect(lease.status).toBe('normalising');
    const text = scene.certificate(lease, node('io1'), asked?.nonce ?? '');
    scene.certify(lease, [{ node: node('io1'), text }]);
    expect(scene.run(free(scene.state))).toEqual({ uid: lease.uid });
  });

  test('a node of the job that joins as a walker loses its certificate', () => {
    const { scene, lease } = makeScene();
    scene.clean(lease);
    scene.run(begin(scene.state));
    scene.run(decideJoin(scene.state, facts(), ref, node('n1')));
    scene.run(finish(scene.state));
    expect(refusal(scene, () => free(scene.state))).toBe('release-blocked');
    expect(lease.nodes.get(node('n1'))?.role).toBe('job');
  });

  test('a retry keeps certificates and asks for every verify pass again', () => {
    const { scene, lease } = makeScene();
    scene.clean(lease);
    scene.run(begin(scene.state));
    scene.run(finish(scene.state));
    scene.run(decideQuarantine(scene.state, facts(), ref, why));
    expect(refusal(scene, () => free(scene.state))).toBe('lease-state');
    const drain = scene.run(decideRetry(scene.state, facts(), ref, { bindings: [], seed }));
    expect(drain.nonces).toEqual([]);
    expect(drain.lease.quarantine?.text).toBe('why');
    scene.run(begin(scene.state));
    expect(refusal(scene, () => free(scene.state))).toBe('release-blocked');
  });
});

describe('quarantine', () => {
  test('keeps the first reason and writes the second nowhere', () => {
    const { scene } = makeScene();
    scene.run(decideQuarantine(scene.state, facts(), ref, { ...why, node: node('n1') }));
    const count = scene.log.length;
    const view = scene.run(
      decideQuarantine(scene.state, facts(), ref, { code: 'node-dirty', text: 'later', node: null }),
    );
    expect(view.quarantine).toEqual({ code: 'operator', text: 'why', node: 'n1', wallMs: T0 });
    expect(scene.log).toHaveLength(count);
  });

  test.each([
    ['long', 'x'.repeat(5000), 512],
    ['of four-byte characters', '\u{1f4a9}'.repeat(600), 1024],
    ['with a lone surrogate', 'a\ud800b', 3],
  ])('bounds a text that is %s', (_, text, length) => {
    const { scene } = makeScene();
    const view = scene.run(decideQuarantine(scene.state, facts(), ref, { ...why, text }));
    expect(view.quarantine?.text).toHaveLength(length);
  });
});

describe('expiry', () => {
  const expire = (scene: Scene, how: RuleFacts) => refusal(scene, () => decideExpire(scene.state, how, ref));
  const elsewhere = (ms: number, skewMs: number | undefined = 4000) =>
    facts(at(ms, { bootId: OTHER_BOOT, skewMs }));

  test('another host lets a lease expire only a whole skew bound after its end', () => {
    const { scene, lease } = makeScene();
    expect(expire(scene, elsewhere(61_000))).toBe('lease-state');
    expect(expire(scene, elsewhere(64_000))).toBe('lease-state');
    expect(expire(scene, elsewhere(65_000))).toBe('no refusal');
    expect(lease.status).toBe('quarantined');
    expect(lease.quarantine?.code).toBe('expired');
    expect(scene.state.leases.rowOfUid(lease.uid)?.number).toBe(lease.number);
  });

  test('a host whose clock is off, or was not measured, lets nothing expire and says so', () => {
    const { scene } = makeScene();
    expect(expire(scene, elsewhere(999_000, 60_000))).toBe('clock-skew');
    expect(expire(scene, facts(at(999_000, { bootId: OTHER_BOOT, skewMs: undefined })))).toBe('clock-skew');
    expect(expire(scene, elsewhere(65_000))).toBe('no refusal');
  });

  test('the host that granted needs no clock but its own monotonic one', () => {
    const { scene } = makeScene();
    expect(expire(scene, facts(at(59_999, { wallMs: T0 + 9_000_000 })))).toBe('lease-state');
    expect(expire(scene, facts(at(60_000, { wallMs: T0 - 9_000_000, skewMs: undefined })))).toBe(
      'no refusal',
    );
  });
});

describe('ended attempts', () => {
  const day = 24 * 3600 * 1000;
  const releaseAt = (scene: Scene, id: string, ms: number, skewMs = 0) => {
    const lease = scene.allocate(request({ job: job(id), ttlMs: LIMITS.ttlMsMax }), facts(at(0)));
    scene.release(lease, facts(at(ms, { skewMs })));
  };
  const known = (scene: Scene) => [...scene.state.ended].map((one) => one.job);

  test('are forgotten once they are older than the configured days', () => {
    const scene = new Scene();
    releaseAt(scene, 'a', 0);
    releaseAt(scene, 'b', day);
    releaseAt(scene, 'c', 7 * day);
    expect(known(scene)).toEqual(['a', 'b', 'c']);
    releaseAt(scene, 'd', 7 * day + 1);
    expect(known(scene)).toEqual(['b', 'c', 'd']);
  });

  test('are not forgotten by a clock that is off', () => {
    const scene = new Scene();
    releaseAt(scene, 'a', 0);
    releaseAt(scene, 'b', 3650 * day, 6000);
    expect(known(scene)).toEqual(['a', 'b']);
  });
});

test.each<[string, LeaseRef]>([
  ['number', { lease: leaseNumber(1) }],
  ['job', { job: job('42') }],
])('a lease that was freed is named by its %s as ended', (_, by) => {
  const { scene, lease } = makeScene();
  scene.release(lease);
  expect(refusal(scene, () => decideRenew(scene.state, facts(), by, 60_000))).toBe('lease-ended');
});
