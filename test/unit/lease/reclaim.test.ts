import { describe, expect, test } from 'vitest';
import { decideAllocate } from '../../../src/lease/allocate.ts';
import type { LeaseDecision } from '../../../src/lease/decision.ts';
import { proofOf } from '../../../src/lease/lease.ts';
import type { LeaseRow } from '../../../src/lease/lease-table.ts';
import { leaseMachine } from '../../../src/lease/machine.ts';
import {
  decideBeginNormalise,
  decideBind,
  decideFinishRoot,
  decideFree,
  decideJoin,
  decideQuarantine,
  decideReclaim,
  decideRetry,
} from '../../../src/lease/rules.ts';
import { emptyState, type LeaseState } from '../../../src/lease/state.ts';
import {
  at,
  attempt,
  bytesOf,
  codeOf,
  facts,
  job,
  leaseNumber,
  makeWorker,
  node,
  nodes,
  request,
  Scene,
  T0,
  uid,
} from './scene.ts';

const ref = { lease: leaseNumber(1) };
const n2 = node('n2');
const word = { node: n2, by: 'operator', reason: 'power supply burnt' };

/** Lease 1 over n1 and n2, both bound. */
const makeScene = () => {
  const scene = new Scene();
  const lease = scene.allocate();
  scene.bind(ref, nodes('n1', 'n2'));
  return { scene, lease };
};

const reclaim = (scene: Scene, change: Partial<typeof word> = {}, how = facts(at(7000))) =>
  scene.run(decideReclaim(scene.state, how, ref, { ...word, ...change }));

const code = (scene: Scene, decision: () => LeaseDecision<unknown>) => codeOf(() => scene.run(decision()));

/** Retries the release; only the named nodes answer and certify. */
const retry = (scene: Scene, lease: LeaseRow, ...answering: string[]) => {
  const seed = Buffer.from(`seed ${scene.log.length}`);
  const bindings = scene.bindings(nodes(...answering));
  const { nonces } = scene.run(decideRetry(scene.state, facts(), ref, { bindings, seed }));
  const texts = nonces
    .filter((asked) => answering.includes(asked.node))
    .map((asked) => ({ node: asked.node, text: scene.certificate(lease, asked.node, asked.nonce) }));
  const { refused } = scene.certify(lease, texts);
  return { asked: nonces.map((asked) => asked.node), refused };
};

const finishAs = (scene: Scene, proof: string) =>
  decideFinishRoot(scene.state, facts(), ref, {
    path: '/scratch/xce',
    proof,
    walked: 1,
    changed: 1,
    left: 0,
  });
const finish = (scene: Scene) => {
  const lease = scene.state.leases.get(ref.lease);
  return scene.run(finishAs(scene, lease === undefined ? 'none' : proofOf(lease)));
};

const restored = (from: LeaseState): LeaseState => {
  const state = emptyState();
  for (const record of leaseMachine.snapshot(from)) leaseMachine.restore(state, record);
  return state;
};

describe('a node that an operator has reclaimed', () => {
  test('ends the attempt with a reason of its own, and says who, when and why', () => {
    const { scene } = makeScene();
    const view = reclaim(scene);
    expect(view.status).toBe('quarantined');
    expect(view.quarantine).toEqual({
      code: 'reclaimed',
      text: 'power supply burnt',
      node: 'n2',
      wallMs: T0 + 7000,
    });
    expect(view.nodes.map(({ node: name, reclaim: said }) => [name, said])).toEqual([
      ['n1', null],
      ['n2', { by: 'operator', reason: 'power supply burnt', wallMs: T0 + 7000 }],
    ]);
  });

  test('lets the job be requeued elsewhere under another uid', () => {
    const { scene, lease } = makeScene();
    reclaim(scene);
    const next = scene.allocate(request({ attempt: attempt(1), nodes: nodes('n1', 'n3') }));
    expect(next.uid).not.toBe(lease.uid);
    expect(scene.state.leases.rowOfUid(lease.uid)?.number).toBe(lease.number);
    expect(code(scene, () => decideBind(scene.state, facts(), ref, []))).toBe('lease-state');
  });

  test('is reclaimed once, whoever repeats it', () => {
    const { scene, lease } = makeScene();
    reclaim(scene);
    const count = scene.log.length;
    reclaim(scene, { by: 'somebody else' });
    expect(scene.log).toHaveLength(count);
    expect(lease.nodes.get(n2)?.reclaim?.by).toBe('operator');
  });

  test('holds the uid, but not the files, until it has certified', () => {
    const { scene, lease } = makeScene();
    reclaim(scene);
    expect(retry(scene, lease, 'n1').asked).toEqual(['n1', 'n2']);
    scene.run(decideBeginNormalise(scene.state, facts(), ref));
    finish(scene);
    expect(code(scene, () => decideFree(scene.state, facts(), ref))).toBe('release-blocked');
    scene.run(
      decideQuarantine(scene.state, facts(), ref, { code: 'reclaimed', text: 'waits for n2', node: n2 }),
    );

    expect(retry(scene, lease, 'n2')).toEqual({ asked: ['n2'], refused: [] });
    scene.run(decideBeginNormalise(scene.state, facts(), ref));
    expect(code(scene, () => decideFree(scene.state, facts(), ref))).toBe('release-blocked');
    finish(scene);
    expect(scene.run(decideFree(scene.state, facts(), ref))).toEqual({ uid: lease.uid });
  });

  test('that certifies in the middle of a walk takes back what was verified before', () => {
    const { scene, lease } = makeScene();
    reclaim(scene);
    retry(scene, lease, 'n1');
    scene.run(decideBeginNormalise(scene.state, facts(), ref));
    finish(scene);
    const [asked] = scene.drain(lease);
    if (asked === undefined) throw new Error('n2 was asked');
    scene.certify(lease, [{ node: n2, text: scene.certificate(lease, n2, asked.nonce) }]);
    expect(lease.status).toBe('normalising');
    expect(lease.finished).toEqual([]);
    expect(code(scene, () => decideFree(scene.state, facts(), ref))).toBe('release-blocked');
  });

  test('that certifies makes void a walk that began before, however late that one comes to its end', () => {
    const { scene, lease } = makeScene();
    reclaim(scene);
    retry(scene, lease, 'n1');
    const { proof } = scene.run(decideBeginNormalise(scene.state, facts(), ref));
    scene.run(
      decideQuarantine(scene.state, facts(), ref, { code: 'reclaimed', text: 'waits for n2', node: n2 }),
    );
    retry(scene, lease, 'n2');
    const renewed = scene.run(decideBeginNormalise(scene.state, facts(), ref));
    expect(code(scene, () => finishAs(scene, proof))).toBe('lease-state');
    expect(code(scene, () => decideFree(scene.state, facts(), ref))).toBe('release-blocked');
    scene.run(finishAs(scene, renewed.proof));
    expect(scene.run(decideFree(scene.state, facts(), ref))).toEqual({ uid: lease.uid });
  });

  test('may come back with another boot and another worker key, but only once', () => {
    const { scene, lease } = makeScene();
    reclaim(scene);
    scene.workers.set(n2, makeWorker('boot after the return'));
    retry(scene, lease, 'n1');
    scene.drain(lease);
    const bound = lease.nodes.get(n2)?.binding;
    expect(bound?.bootId).toBe('boot after the return');
    scene.workers.set(n2, makeWorker('yet another'));
    expect(scene.run(decideRetryOrDrain(scene)).foreign.map((one) => one.node)).toEqual(['n2']);
    // What came back was lost again: that is another word of an operator.
    reclaim(scene, { reason: 'again' });
    expect(lease.nodes.get(n2)).toMatchObject({ binding: null, reclaim: { reason: 'again' } });
    expect(retry(scene, lease, 'n2').refused).toEqual([]);
  });

  test('does not let the walk begin without the others', () => {
    const { scene, lease } = makeScene();
    reclaim(scene);
    retry(scene, lease);
    expect(code(scene, () => decideBeginNormalise(scene.state, facts(), ref))).toBe('release-blocked');
  });

  test('gives no old certificate any worth', () => {
    const { scene, lease } = makeScene();
    const [, asked] = scene.drain(lease);
    if (asked === undefined) throw new Error('n2 was asked');
    const text = scene.certificate(lease, n2, asked.nonce);
    reclaim(scene);
    const bindings = scene.bindings(nodes('n1', 'n2'));
    scene.run(decideRetry(scene.state, facts(), ref, { bindings, seed: Buffer.from('later') }));
    expect(scene.certify(lease, [{ node: n2, text }]).refused.map((one) => one.node)).toEqual(['n2']);
    expect(scene.state.withheld.holderOf(n2)).toBe(1);
  });
});

const decideRetryOrDrain = (scene: Scene) => {
  scene.run(decideQuarantine(scene.state, facts(), ref, { code: 'operator', text: 'why', node: null }));
  return decideRetry(scene.state, facts(), ref, {
    bindings: scene.bindings([n2]),
    seed: Buffer.from('other'),
  });
};

describe('reclaim is refused', () => {
  test.each<[string, string, Partial<typeof word>]>([
    ['for a node of another lease', 'node-unknown', { node: node('n9') }],
    ['without a reason', 'usage', { reason: '  ' }],
    ['with a reason of two lines', 'usage', { reason: 'a\nb' }],
    ['with a reason that is too long', 'usage', { reason: 'x'.repeat(513) }],
    ['with a reason that UTF-8 cannot carry', 'usage', { reason: '\ud800' }],
    ['without a name', 'usage', { by: '' }],
    ['with a name that is too long', 'usage', { by: 'x'.repeat(65) }],
  ])('%s', (_, wanted, change) => {
    const { scene } = makeScene();
    const before = bytesOf(scene.state);
    expect(codeOf(() => reclaim(scene, change))).toBe(wanted);
    expect(bytesOf(scene.state).equals(before)).toBe(true);
  });

  test('for a node that has certified, and for a lease that is gone', () => {
    const { scene, lease } = makeScene();
    scene.clean(lease);
    expect(codeOf(() => reclaim(scene))).toBe('lease-state');
    scene.normalise(lease);
    scene.run(decideFree(scene.state, facts(), ref));
    expect(codeOf(() => reclaim(scene))).toBe('lease-ended');
  });
});

describe('a withheld node', () => {
  const allocate = (scene: Scene, id: string, ...names: string[]) =>
    decideAllocate(scene.state, facts(), request({ job: job(id), nodes: nodes(...names) }), {
      absent: [uid(70_005)],
      present: new Set(),
      wanted: 1,
    });

  test('serves no job until it has certified, and the refusal names the release that waits', () => {
    const { scene, lease } = makeScene();
    const other = scene.allocate(request({ job: job('43') }));
    reclaim(scene);
    expect(code(scene, () => allocate(scene, '44', 'n1', 'n2'))).toBe('node-withheld');
    expect(code(scene, () => allocate(scene, '43', 'n1', 'n2'))).toBe('node-withheld');
    const by = { lease: other.number };
    const bind = () => decideBind(scene.state, facts(), by, scene.bindings(nodes('n1', 'n2')));
    expect(code(scene, bind)).toBe('node-withheld');
    expect(bind()).toMatchObject({ facts: { next: 'xce-sandbox lease release --lease 1', at: 'n2' } });
    expect(code(scene, () => decideJoin(scene.state, facts(), by, n2))).toBe('node-withheld');
    expect(code(scene, () => allocate(scene, '44', 'n1'))).toBe('no refusal');
    expect(code(scene, () => decideBind(scene.state, facts(), by, scene.bindings(nodes('n1'))))).toBe(
      'no refusal',
    );

    retry(scene, lease, 'n1', 'n2');
    expect(scene.state.withheld.size).toBe(0);
    expect(code(scene, bind)).toBe('no refusal');
  });

  test('waits for every lease that it was reclaimed from', () => {
    const { scene, lease } = makeScene();
    const other = scene.allocate(request({ job: job('43') }));
    reclaim(scene);
    scene.run(decideReclaim(scene.state, facts(), { lease: other.number }, word));
    retry(scene, lease, 'n1', 'n2');
    expect(scene.state.withheld.holderOf(n2)).toBe(other.number);
    expect(allocate(scene, '44', 'n2')).toMatchObject({
      facts: { next: 'xce-sandbox lease release --lease 2' },
    });
  });

  test('is withheld by a state that comes from a checkpoint as well', () => {
    const { scene } = makeScene();
    reclaim(scene);
    const copy = restored(scene.state);
    expect(bytesOf(copy).equals(bytesOf(scene.state))).toBe(true);
    expect(copy.withheld.holderOf(n2)).toBe(1);
    expect(copy.leases.get(leaseNumber(1))?.nodes.get(n2)?.reclaim).toEqual({
      by: 'operator',
      reason: 'power supply burnt',
      wallMs: T0 + 7000,
    });
  });

  test('of a checkpoint must be a node of a lease without a certificate', () => {
    const { scene } = makeScene();
    reclaim(scene);
    const records = [...leaseMachine.snapshot(scene.state)];
    const last = records.at(-1);
    if (last === undefined) throw new Error('the reclaims come last');
    const twice = emptyState();
    const restoreTwice = () => {
      for (const one of [...records, last]) leaseMachine.restore(twice, one);
    };
    expect(codeOf(restoreTwice)).toBe('log-corrupt');
    expect(codeOf(() => leaseMachine.restore(emptyState(), last))).toBe('log-corrupt');
  });
});

test('that a uid is taken is said in every state, and whatever was said before', () => {
  const { scene, lease } = makeScene();
  const say = (why: 'operator' | 'uid-taken') =>
    scene.run(decideQuarantine(scene.state, facts(), ref, { code: why, text: why, node: null }));
  expect(say('operator').quarantine?.code).toBe('operator');
  expect(say('uid-taken')).toMatchObject({ status: 'quarantined', quarantine: { code: 'uid-taken' } });
  const count = scene.log.length;
  expect(say('uid-taken').quarantine?.code).toBe('uid-taken');
  expect(say('operator').quarantine?.code).toBe('uid-taken');
  expect(scene.log).toHaveLength(count);
  retry(scene, lease, 'n1', 'n2');
  expect(say('uid-taken').status).toBe('quarantined');
});
