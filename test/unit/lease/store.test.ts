import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { LeaseNumber, NodeName, Uid } from '../../../src/base/ids.ts';
import { signCertificate } from '../../../src/lease/certificate.ts';
import type { LeaseEvent } from '../../../src/lease/event.ts';
import { LeaseStore } from '../../../src/lease/store.ts';
import type { Answer } from '../../../src/os/name-service.ts';
import { MemoryLog } from './memory-log.ts';
import {
  attempt,
  BOOT,
  epoch,
  IDENTITY,
  job,
  leaseNumber,
  makeWorker,
  node,
  nodes,
  OTHER_BOOT,
  request,
  T0,
  type TestWorker,
  uid,
} from './scene.ts';

const makeStore = (last = 70_009) => {
  const log = new MemoryLog();
  const clock = { ms: 0, jumpMs: 0 };
  const names = new Map<number, Answer>();
  const asked: number[] = [];
  const settings = {
    cluster: { name: IDENTITY.cluster, instance: IDENTITY.instance, pki: '/pki' },
    pool: { first: uid(70_000), last: uid(last) },
    lease: {
      directory: '/log',
      storage: 'local' as const,
      probeListen: { address: '127.0.0.1', port: 7714 },
      lockTimeoutMs: 1000,
      storageTimeoutMs: 30_000,
      skewMs: 5000,
      ttlMs: 60_000,
      rememberDays: 7,
    },
  };
  const storeOn = (bootId: string) =>
    new LeaseStore(
      {
        log,
        bootId,
        clock: { wallMs: () => T0 + clock.ms + clock.jumpMs, monotonicMs: () => 1000 + clock.ms },
        nameService: {
          lookUp: async (id) => {
            asked.push(id);
            return names.get(id) ?? { answer: 'absent' };
          },
        },
      },
      settings,
    );
  /** Real time passes; the wall clock may jump beside it. */
  const pass = (ms: number, jumpMs = 0) => {
    clock.ms += ms;
    clock.jumpMs += jumpMs;
    log.wallMs = T0 + clock.ms + clock.jumpMs;
  };
  return { log, store: storeOn(BOOT), storeOn, names, asked, pass };
};

const codeOf = async (call: Promise<unknown>): Promise<XceError> => {
  try {
    await call;
  } catch (error) {
    if (error instanceof XceError) return error;
    throw error;
  }
  throw new Error('it was not refused');
};

describe('allocate', () => {
  test('looks the uid up before it is granted, in one record', async () => {
    const { log, store, asked } = makeStore();
    const { result, position } = await store.allocate(request());
    expect(result).toMatchObject({ created: true, skipped: [], lease: { uid: 70_000, lease: 1 } });
    expect(asked).toEqual([70_000]);
    expect(log.records).toHaveLength(1);
    expect(position.epoch).toBe(1);
  });

  test('again gives the same lease, one record, and asks nobody', async () => {
    const { log, store, asked } = makeStore();
    await store.allocate(request());
    const { result } = await store.allocate(request());
    expect(result).toMatchObject({ created: false, lease: { lease: 1 } });
    expect(log.records).toHaveLength(1);
    expect(asked).toHaveLength(1);
  });

  test('passes over uids that the name service knows and says which', async () => {
    const { store, names } = makeStore();
    for (const taken of [70_000, 70_001, 70_002])
      names.set(taken, { answer: 'present', reason: 'passwd knows it' });
    const { result } = await store.allocate(request());
    expect(result.lease.uid).toBe(70_003);
    expect(result.skipped).toEqual([70_000, 70_001, 70_002]);
  });

  test('grants nothing when the name service gives no answer', async () => {
    const { log, store, names } = makeStore();
    names.set(70_000, { answer: 'unknown', reason: 'name service not answering' });
    const error = await codeOf(store.allocate(request()));
    expect(error).toMatchObject({ code: 'name-service', exitStatus: 69 });
    expect(error.message).toContain('name service not answering');
    expect(log.records).toHaveLength(0);
  });

  test('asks anew each time: an earlier answer proves nothing later', async () => {
    const { store, names } = makeStore();
    await store.allocate(request());
    names.set(70_001, { answer: 'unknown', reason: 'down' });
    expect(await codeOf(store.allocate(request({ job: job('43') })))).toMatchObject({ code: 'name-service' });
  });

  test('takes another uid when somebody else took the one that was looked up', async () => {
    const { log, store } = makeStore();
    const rival: LeaseEvent = {
      ...request({ job: job('rival') }),
      kind: 'allocate',
      lease: leaseNumber(1),
      uid: uid(70_000),
      term: { ttlMs: 60_000, issued: { wallMs: T0, monotonicMs: 0, bootId: OTHER_BOOT } },
      epoch: epoch(1),
    };
    log.beforeCommit = (commit) => {
      if (commit === 2) log.append([rival]);
    };
    const { result } = await store.allocate(request());
    expect(result.lease).toMatchObject({ lease: 2, uid: 70_001 });
  });

  test('of a full pool is refused a hundred times without a record', async () => {
    const { log, store } = makeStore(70_000);
    await store.allocate(request());
    for (let count = 0; count < 100; count += 1) {
      const error = await codeOf(store.allocate(request({ job: job('43') })));
      expect(error).toMatchObject({ code: 'pool-exhausted', exitStatus: 75 });
    }
    expect(log.records).toHaveLength(1);
  });

  test('gives up after a bounded number of look-ups', async () => {
    const { log, store, names, asked } = makeStore(79_999);
    for (let id = 70_000; id <= 79_999; id += 1) names.set(id, { answer: 'present', reason: 'known' });
    expect(await codeOf(store.allocate(request()))).toMatchObject({ code: 'uid-taken' });
    expect(asked.length).toBeLessThan(400);
    expect(log.records).toHaveLength(0);
  });

  test('of a pool that the name service knows entirely is exhausted', async () => {
    const { store, names } = makeStore(70_001);
    for (const id of [70_000, 70_001]) names.set(id, { answer: 'present', reason: 'known' });
    expect(await codeOf(store.allocate(request()))).toMatchObject({ code: 'pool-exhausted' });
  });

  test('by many callers at once gives each its own uid', async () => {
    const { store } = makeStore(70_099);
    const all = await Promise.all(
      Array.from({ length: 40 }, (_, index) => store.allocate(request({ job: job(`j${index}`) }))),
    );
    expect(new Set(all.map(({ result }) => result.lease.uid)).size).toBe(40);
  });

  test('tells what the log had to tell', async () => {
    const { log, store } = makeStore();
    log.notices = [{ kind: 'epoch-taken', epoch: 2, reason: 'torn tail' }];
    expect((await store.allocate(request())).notices).toEqual([
      { kind: 'epoch-taken', epoch: 2, reason: 'torn tail' },
    ]);
  });

  test('passes errors of the log on as they are', async () => {
    const { log, store } = makeStore();
    log.failure = new XceError('log-outcome-unknown', 'a successor appeared');
    expect(await codeOf(store.allocate(request()))).toBe(log.failure);
  });
});

describe('time left', () => {
  test.each([-3_600_000, 3_600_000])(
    'is right on the granting host when its clock jumps %i ms',
    async (jump) => {
      const { store, storeOn, pass } = makeStore();
      await store.allocate(request());
      pass(30_000, jump);
      // Another process of the same boot knows nothing but the log.
      const [lease] = await storeOn(BOOT).list();
      expect(lease).toMatchObject({ remainingMs: 30_000, expiry: 'live' });
      pass(30_000);
      expect((await store.list())[0]).toMatchObject({ remainingMs: 0, expiry: 'expired' });
      expect(await codeOf(store.renew({ lease: leaseNumber(1) }, 60_000))).toMatchObject({
        code: 'lease-expired',
      });
    },
  );

  test('another host lets a lease expire only by a clock that it measured', async () => {
    const { log, store, storeOn, pass } = makeStore();
    await store.allocate(request());
    const other = storeOn(OTHER_BOOT);
    const ref = { lease: leaseNumber(1) };
    pass(600_000);
    log.skewMs = -60_000;
    const error = await codeOf(other.expire(ref));
    expect(error).toMatchObject({ code: 'clock-skew' });
    expect(error.message).toContain('clock skew');
    log.skewMs = 0;
    expect((await other.expire(ref)).result).toMatchObject({ status: 'quarantined' });
  });
});

const certify = (lease: LeaseNumber, holder: Uid, name: NodeName, nonce: string, worker: TestWorker) => ({
  node: name,
  certificate: signCertificate(
    { ...IDENTITY, lease, uid: holder, node: name, bootId: worker.bootId, nonce, wallMs: T0 },
    worker.key,
  ),
});

describe('the way of one lease', () => {
  test('from grant to free, each step once more than needed, and then the next job', async () => {
    const { log, store } = makeStore(70_000);
    const workers = new Map(nodes('n1', 'n2').map((name) => [name, makeWorker()]));
    const bindings = [...workers].map(([name, { hex, bootId }]) => ({ node: name, workerKey: hex, bootId }));
    const mount = { path: '/scratch/xce', source: 's', type: 'ext4', fsid: '1' };
    const { lease, uid: holder } = (await store.allocate(request())).result.lease;
    const ref = { job: job('42') };

    for (let round = 0; round < 2; round += 1) {
      await store.bind(ref, bindings);
      await store.recordMounts(ref, [{ node: node('n1'), mounts: [mount] }]);
      await store.renew(ref, 120_000);
    }
    expect((await store.show(ref)).mounts).toEqual([mount]);
    expect(await codeOf(store.beginNormalise(ref))).toMatchObject({ code: 'lease-state' });
    const drains = [await store.beginDrain(ref, bindings), await store.beginDrain(ref, bindings)];
    const nonces = drains[1]?.result.nonces ?? [];
    const texts = nonces.map(({ node: name, nonce }) =>
      certify(lease, holder, name, nonce, workers.get(name) ?? makeWorker()),
    );
    expect(await codeOf(store.beginNormalise(ref))).toMatchObject({ code: 'release-blocked' });
    for (let round = 0; round < 2; round += 1)
      expect((await store.certify(ref, texts)).result.refused).toEqual([]);
    await store.beginNormalise(ref);
    const { proof } = (await store.beginNormalise(ref)).result;
    expect(await codeOf(store.free(ref))).toMatchObject({ code: 'release-blocked' });
    const found = { path: '/scratch/xce', proof, walked: 9, changed: 3, left: 0 };
    for (let round = 0; round < 2; round += 1) await store.finishRoot(ref, found);
    expect(await codeOf(store.allocate(request({ job: job('43') })))).toMatchObject({
      code: 'pool-exhausted',
    });
    expect((await store.free(ref)).result).toEqual({ uid: holder });

    const records = log.records.length;
    expect(await codeOf(store.show(ref))).toMatchObject({
      code: 'lease-ended',
      facts: { detail: { uid: holder } },
    });
    expect(await codeOf(store.beginDrain(ref, bindings))).toMatchObject({ code: 'lease-ended' });
    expect(await codeOf(store.allocate(request()))).toMatchObject({ code: 'lease-ended' });
    expect(await codeOf(store.beginDrain({ job: job('99') }, []))).toMatchObject({ code: 'lease-missing' });
    expect(log.records).toHaveLength(records);
    expect((await store.allocate(request({ job: job('43') }))).result.lease.uid).toBe(holder);
  });

  test('certificates that do not check are named, with the node, and nothing is recorded for them', async () => {
    const { log, store } = makeStore();
    const worker = makeWorker();
    const { lease, uid: holder } = (await store.allocate(request())).result.lease;
    const ref = { lease };
    const { nonces } = (
      await store.beginDrain(ref, [{ node: node('n1'), workerKey: worker.hex, bootId: worker.bootId }])
    ).result;
    const [first] = nonces;
    const good = certify(lease, holder, node('n1'), first?.nonce ?? '', worker);
    const records = log.records.length;
    const { result } = await store.certify(ref, [
      { ...good, certificate: good.certificate.replace('xcc1.', 'xcc1.A') },
      { ...good, node: node('n2') },
      { ...good, node: node('n3') },
      certify(lease, holder, node('n1'), first?.nonce ?? '', makeWorker()),
    ]);
    expect(result.refused.map((one) => one.node)).toEqual(['n1', 'n2', 'n3', 'n1']);
    expect(log.records).toHaveLength(records);
    expect(result.lease.nodes.every((one) => !one.certified)).toBe(true);
  });

  test('certificates of many nodes take several records', async () => {
    const { log, store } = makeStore();
    const worker = makeWorker();
    const names = Array.from({ length: 900 }, (_, index) => node(`n${index}`));
    const bindings = names.map((name) => ({ node: name, workerKey: worker.hex, bootId: worker.bootId }));
    const { lease, uid: holder } = (await store.allocate(request({ nodes: names }))).result.lease;
    const { nonces } = (await store.beginDrain({ lease }, bindings)).result;
    const records = log.records.length;
    const texts = nonces.map(({ node: name, nonce }) => certify(lease, holder, name, nonce, worker));
    const { result } = await store.certify({ lease }, texts);
    expect(result.refused).toEqual([]);
    expect(result.lease.nodes.every((one) => one.certified)).toBe(true);
    expect(log.records.length - records).toBe(2);
  }, 30_000);

  test('list shows what is asked for', async () => {
    const { store } = makeStore();
    await store.allocate(request());
    await store.allocate(request({ attempt: attempt(1) }));
    expect((await store.list()).map((one) => one.status)).toEqual(['quarantined', 'active']);
    expect((await store.list(['active'])).map((one) => one.attempt)).toEqual([1]);
    const { result } = await store.retry({ lease: leaseNumber(1) }, []);
    expect(result.lease.status).toBe('draining');
    const why = { code: 'operator', text: 'by hand', node: null } as const;
    expect((await store.quarantine({ lease: leaseNumber(1) }, why)).result.quarantine?.text).toBe('by hand');
    expect((await store.join({ lease: leaseNumber(2) }, node('io1'))).result.nodes.at(-1)?.role).toBe(
      'helper',
    );
  });
});

test('a refusal says what was left unchanged and what to do next', async () => {
  const { store } = makeStore();
  await store.allocate(request());
  const error = await codeOf(store.allocate(request({ nodes: nodes('n9') })));
  expect(error.facts).toMatchObject({
    unchanged: 'nothing was written to the lease log',
    next: 'xce-sandbox lease show --job 42 --attempt 0',
  });
});
