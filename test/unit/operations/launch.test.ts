import { getEventListeners, setMaxListeners } from 'node:events';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { Epoch, LeaseNumber, NodeName, Uid } from '../../../src/base/ids.ts';
import { IN_FLIGHT_MAX } from '../../../src/launch/fleet.ts';
import type { Launch } from '../../../src/launch/run.ts';
import { beginTerm } from '../../../src/lease/term.ts';
import { type LaunchInput, launchJob } from '../../../src/operations/launch.ts';
import type { RequestOf } from '../../../src/rpc/message.ts';
import { exited, type FakeWorker, GOOD } from '../../support/fake-sessions.ts';
import { BOOT, job, request } from '../lease/scene.ts';
import {
  claimsIn,
  errorOf,
  LEASE,
  REQUEST_TIMEOUT_MS,
  selection,
  settle,
  setUp,
  useFakeTime,
} from './scene.ts';

beforeEach(useFakeTime);

afterEach(() => {
  const timers = vi.getTimerCount();
  vi.useRealTimers();
  expect(timers).toBe(0);
});

const input: LaunchInput = {
  selection,
  nodes: undefined,
  argv: [Buffer.from('id')],
  environment: [],
  directory: undefined,
  mpi: undefined,
  mpiOptions: [],
  ranks: undefined,
  tasksPerNode: undefined,
  endsOnBadExit: false,
  output: { stdout: undefined, stderr: undefined, mode: 'new' },
  timeoutMs: undefined,
  resources: undefined,
  stdin: undefined,
};

type Scene = Awaited<ReturnType<typeof setUp>>;

/** Starts a launch and lets it go on until it waits for time or for its steps. */
const launch = async (
  scene: Scene,
  changes: Partial<LaunchInput> = {},
  cancelled = new AbortController(),
) => {
  setMaxListeners(2 * IN_FLIGHT_MAX, cancelled.signal);
  let running: Launch | undefined;
  let closed = 0;
  const result = launchJob(
    scene.context,
    { ...input, ...changes },
    {
      makeSink: (files) => ({
        write: async (place, stream, bytes) => await files[stream]?.(bytes, place),
        finish: async () => undefined,
      }),
      report: async () => undefined,
      stdin: {
        source: (async function* () {
          yield Buffer.from('input');
        })(),
        close: () => {
          closed += 1;
        },
      },
      cancelled: cancelled.signal,
      onRunning: (started) => {
        running = started;
      },
    },
  );
  // Looked at later; until then a failure is no unhandled one.
  result.catch(() => undefined);
  await settle();
  return { result, running: () => running, closed: () => closed };
};

const headOf = (worker: FakeWorker): RequestOf<'step'> => worker.heads.at(-1) as RequestOf<'step'>;
const textOf = (base64: string): string => Buffer.from(base64, 'base64').toString('latin1');

const endAll = (scene: Scene, outcome = GOOD): void => {
  for (const { streams } of scene.all) for (const stream of streams) if (stream.isOpen) stream.end(outcome);
};

describe('a launch', () => {
  test('of a lease that no ticket holds, as were granted once, is refused before any node is asked', async () => {
    const scene = await setUp();
    const many = Array.from(
      { length: 6200 },
      (_, n) => `n${n}.${'x'.repeat(60)}.${'y'.repeat(63)}` as NodeName,
    );
    await scene.log.commit((state, { wallMs }) => ({
      result: undefined,
      events: [
        {
          ...request({ job: job('big'), nodes: [scene.lease.nodes[0]?.node ?? ('n1' as NodeName), ...many] }),
          ...{
            kind: 'allocate',
            lease: state.nextLease as LeaseNumber,
            uid: 70_001 as Uid,
            epoch: 1 as Epoch,
          },
          term: beginTerm(60_000, { wallMs, monotonicMs: 1_000_000, bootId: BOOT }),
        },
      ],
    }));
    scene.journal.length = 0;
    const { result } = await launch(scene, {
      selection: { ...selection, job: job('big') },
      nodes: 'n1',
    });
    const { code, facts } = await errorOf(result);
    expect(code).toBe('too-large');
    expect(facts).toMatchObject({
      unchanged: 'nothing was started on any node',
      next: expect.stringContaining(
        'xce-sandbox lease release --job big --attempt 0; then lease fewer nodes',
      ),
    });
    expect(scene.journal).toEqual([]);
  });

  test('asks, records, signs, prepares and starts in that order, and nothing before all have done the step before', async () => {
    const scene = await setUp();
    const { result } = await launch(scene);
    expect(scene.journal).toEqual([
      ...['n1 challenge', 'n2 challenge', 'n3 challenge'],
      ...['log bind', 'log bind', 'log bind'],
      ...['sign n1', 'n1 prepare', 'sign n2', 'n2 prepare', 'sign n3', 'n3 prepare'],
      ...['sign n1', 'n1 step', 'sign n2', 'n2 step', 'sign n3', 'n3 step'],
    ]);
    endAll(scene);
    expect(await result).toEqual({
      lease: 1,
      job: '42',
      uid: 70_000,
      nodes: ['n1', 'n2', 'n3'],
      outcome: { kind: 'job', exitStatus: 0, node: undefined },
    });
    expect(scene.asked('stop')).toEqual([]);
  });

  test('starts nothing while one node still prepares', async () => {
    const scene = await setUp();
    const n2 = scene.at('n2');
    let ready = (): void => undefined;
    n2.on('prepare', async () => {
      await new Promise<void>((resolve) => {
        ready = resolve;
      });
      return n2.prepared();
    });
    const { result } = await launch(scene);
    expect(scene.asked('step')).toEqual([]);
    ready();
    await settle();
    expect(scene.asked('step')).toEqual(['n1', 'n2', 'n3']);
    endAll(scene);
    await result;
  });

  test('signs for each node what the log has acknowledged, with the nonce of that node and the time that is left', async () => {
    const scene = await setUp({ ttlMs: 60_000 });
    await vi.advanceTimersByTimeAsync(10_000);
    const tickets = new Map<string, string>();
    for (const worker of scene.all) {
      worker.on('prepare', ({ ticket }) => {
        tickets.set(worker.node, ticket);
        return worker.prepared();
      });
    }
    const { result } = await launch(scene);
    expect(claimsIn(tickets.get('n2') ?? '')).toMatchObject({
      cluster: 'hpc',
      instance: 'main',
      job: '42',
      attempt: 0,
      lease: 1,
      epoch: 1,
      uid: 70_000,
      node: 'n2',
      nodes: ['n1', 'n2', 'n3'],
      nonce: '1'.padStart(32, '0'),
      ttlMs: 50_000,
    });
    expect(scene.all.map((worker) => headOf(worker).ticket)).toEqual(
      ['n1', 'n2', 'n3'].map((node) => tickets.get(node)),
    );
    endAll(scene);
    await result;
  });

  test('passes command, environment and directory on byte for byte', async () => {
    const scene = await setUp();
    const bytes = (text: string): Buffer => Buffer.from(text, 'latin1');
    const { result } = await launch(scene, {
      argv: [bytes('printf'), bytes(''), bytes('$$ %n \xff\n')],
      environment: [bytes('A=\xfe')],
      directory: bytes('/a b/\xff'),
    });
    endAll(scene);
    await settle();
    const head = headOf(scene.at('n1'));
    expect(head.argv.map(textOf)).toEqual(['printf', '', '$$ %n \xff\n']);
    expect(head.environment.map(textOf)).toEqual(['A=\xfe', 'XCE_TASK=0', 'XCE_TASKS=3']);
    expect(textOf(head.directory ?? '')).toBe('/a b/\xff');
    endAll(scene);
    await result;
  });

  test('asks every node for its directory before anything starts, and starts nothing where one cannot enter it', async () => {
    const scene = await setUp();
    const { result } = await launch(scene, { directory: Buffer.from('/none') });
    const { argv, directory } = headOf(scene.at('n2'));
    expect([argv.map(textOf), textOf(directory ?? '')]).toEqual([['/usr/bin/true'], '/none']);
    scene.at('n1').stream.end(GOOD);
    for (const name of ['n2', 'n3']) {
      const { stream } = scene.at(name);
      stream.start();
      stream.print('bash: line 8: cd: /none: No such file or directory\nxce-sandbox: none\n', 'stderr');
      stream.end(exited(125));
    }
    expect(await errorOf(result)).toMatchObject({
      code: 'work-directory',
      message: 'the steps cannot start in /none: n[2-3]: bash: line 8: cd: /none: No such file or directory',
      facts: { unchanged: 'nothing was started on any node' },
    });
    expect(scene.all.map(({ streams }) => streams.length)).toEqual([1, 1, 1]);
    expect(scene.asked('stop')).toEqual(['n1', 'n2', 'n3']);
  });

  test('waits no longer for a look at its directory than a request may take', async () => {
    const scene = await setUp();
    const { result } = await launch(scene, { directory: Buffer.from('/hangs') });
    await vi.advanceTimersByTimeAsync(REQUEST_TIMEOUT_MS);
    expect(await errorOf(result)).toMatchObject({
      code: 'work-directory',
      message: expect.stringContaining(`no answer within ${REQUEST_TIMEOUT_MS} ms`),
    });
    expect(scene.all.every(({ stream }) => stream.cancelled)).toBe(true);
  });

  test('runs several tasks on each node, numbered through, each under a name of its own', async () => {
    const scene = await setUp();
    const { result } = await launch(scene, { tasksPerNode: 2, stdin: 'n2' as NodeName });
    const heads = scene.all.map((worker) => worker.heads as RequestOf<'step'>[]);
    expect(heads.map((own) => own.map(({ environment }) => environment.map(textOf)))).toEqual(
      [0, 1, 2].map((node) => [0, 1].map((own) => [`XCE_TASK=${2 * node + own}`, 'XCE_TASKS=6'])),
    );
    expect(new Set(heads.flat().map(({ step }) => step)).size).toBe(6);
    expect(heads.map((own) => own.map(({ stdin }) => stdin))).toEqual([
      [false, false],
      [true, true],
      [false, false],
    ]);
    for (const { streams } of scene.all) streams[0]?.end(GOOD);
    await settle();
    scene.at('n1').streams[1]?.end(GOOD);
    scene.at('n2').streams[1]?.end(exited(3));
    scene.at('n3').streams[1]?.end(GOOD);
    expect((await result).outcome).toEqual({ kind: 'job', exitStatus: 3, node: 'n2' });
  });

  test.each<[what: string, changes: Partial<LaunchInput>, code: string, says: RegExp]>([
    ['a variable of the sandbox', { environment: [Buffer.from('HOME=/x')] }, 'usage', /HOME is set by/],
    [
      'a variable of its own',
      { environment: [Buffer.from('XCE_TASK=1')] },
      'usage',
      /XCE_TASK is not for a job to set/,
    ],
    ['more tasks than a node takes', { tasksPerNode: 129 }, 'usage', /over the limit of 128/],
    ['a relative directory', { directory: Buffer.from('here') }, 'usage', /absolute/],
    [
      'one argument of 2 MiB',
      { argv: [Buffer.alloc(2 << 20, 'x')] },
      'too-large',
      /arguments too large: 2097153 bytes/,
    ],
    [
      'one variable of 140000 bytes',
      { environment: [Buffer.from(`BIG=${'x'.repeat(140_000)}`)] },
      'too-large',
      /140004 bytes/,
    ],
    [
      '4000 variables of 1 KiB',
      {
        environment: Array.from({ length: 4000 }, (_, index) => Buffer.from(`V${index}=${'x'.repeat(1024)}`)),
      },
      'too-large',
      /environment too large: 41[0-9]{5} bytes in 4002 strings/,
    ],
  ])('refuses %s before it asks any node', async (_, changes, code, says) => {
    const scene = await setUp();
    const { result } = await launch(scene, changes);
    expect(await errorOf(result)).toMatchObject({ code, message: expect.stringMatching(says) });
    expect(scene.journal).toEqual([]);
  });

  test.each<[state: string, code: string, says: RegExp, prepare: (scene: Scene) => Promise<unknown>]>([
    [
      'whose time is over',
      'lease-expired',
      /the time of lease 1 .* is over/,
      () => vi.advanceTimersByTimeAsync(60_000),
    ],
    [
      'in quarantine',
      'lease-state',
      /is quarantined, not active/,
      ({ leases }) => leases.quarantine(LEASE, { code: 'operator', text: 'x', node: null }),
    ],
    [
      'that is being drained',
      'lease-state',
      /is draining, not active/,
      ({ leases }) => leases.beginDrain(LEASE, []),
    ],
  ])('of a lease %s is refused before any node is asked', async (_, code, says, prepare) => {
    const scene = await setUp();
    await prepare(scene);
    scene.journal.length = 0;
    const { result } = await launch(scene);
    const error = await errorOf(result);
    expect(error).toMatchObject({ code, message: expect.stringMatching(says) });
    expect(error.facts).toMatchObject({
      unchanged: 'nothing was started on any node',
      next: 'xce-sandbox lease release --job 42 --attempt 0',
    });
    expect(scene.journal).toEqual([]);
  });

  test('of some nodes of the lease touches only those', async () => {
    const scene = await setUp();
    const { result } = await launch(scene, { nodes: 'n[3,1]' });
    expect(scene.asked('challenge')).toEqual(['n1', 'n3']);
    expect(scene.asked('step')).toEqual(['n1', 'n3']);
    endAll(scene, exited(4));
    expect(await result).toMatchObject({ nodes: ['n3', 'n1'], outcome: { exitStatus: 4 } });
  });

  test('ends when its time limit is over, and says so', async () => {
    const scene = await setUp();
    const { result } = await launch(scene, { timeoutMs: 5000 });
    await vi.advanceTimersByTimeAsync(5000);
    expect((await result).outcome).toEqual({
      kind: 'failure',
      code: 'timeout',
      message: 'the time limit of 5s is over',
    });
    expect(scene.asked('stop')).toEqual(['n1', 'n2', 'n3']);
  });

  test('goes on under a time limit beyond what a timer takes', async () => {
    const scene = await setUp();
    const { result } = await launch(scene, { timeoutMs: 400 * 24 * 3600 * 1000 });
    await vi.advanceTimersByTimeAsync(5000);
    expect(scene.asked('stop')).toEqual([]);
    endAll(scene);
    expect((await result).outcome).toMatchObject({ kind: 'job' });
  });

  test('can be signalled and ended by its caller', async () => {
    const scene = await setUp();
    const { result, running } = await launch(scene);
    running()?.signal(12);
    expect(scene.at('n3').stream.commands).toEqual([{ command: 'signal', signal: 12 }]);
    running()?.end('cancelled', 'ended by Ctrl-C');
    expect((await result).outcome).toEqual({
      kind: 'failure',
      code: 'cancelled',
      message: 'ended by Ctrl-C',
    });
  });

  test('is renewed while it runs, and ends when that is no longer possible', async () => {
    const scene = await setUp({ ttlMs: 60_000 });
    const { result } = await launch(scene);
    await vi.advanceTimersByTimeAsync(30_000);
    expect(scene.asked('renew')).toEqual(['n1', 'n2', 'n3']);
    scene.at('n2').on('renew', () => {
      throw new XceError('sandbox-lost', 'it is lost');
    });
    await vi.advanceTimersByTimeAsync(60_000);
    expect((await result).outcome).toMatchObject({
      kind: 'failure',
      code: 'sandbox-lost',
      message: expect.stringMatching(
        /^the lease was not renewed in time: not every node took .*: n2: it is lost/,
      ),
    });
    expect(scene.asked('stop')).toEqual(['n1', 'n2', 'n3']);
  });

  test('that ends in the middle of a renewal waits for it and tells nothing of it', async () => {
    const scene = await setUp({ ttlMs: 60_000 });
    const { result } = await launch(scene);
    scene.at('n2').on('renew', () => new Promise(() => undefined));
    await vi.advanceTimersByTimeAsync(20_000);
    await settle();
    expect(scene.asked('renew')).toContain('n2');
    endAll(scene);
    expect((await result).outcome).toMatchObject({ kind: 'job' });
    expect(scene.told).toEqual([]);
  });
});

describe('an MPI launch', () => {
  const launchMpi = (scene: Scene, changes: Partial<LaunchInput> = {}) =>
    launch(scene, { mpi: 'prrte', argv: [Buffer.from('./hello')], ...changes });

  const endMpi = async (scene: Scene): Promise<void> => {
    for (const node of ['n2', 'n3'] as NodeName[]) {
      scene.at('n1').stream.say({ event: 'daemon-ended', node, outcome: GOOD });
    }
    endAll(scene);
  };

  test('prepares every node and starts prterun on the first, with the slots that the ranks need', async () => {
    const scene = await setUp();
    const { result } = await launchMpi(scene, { ranks: 5 });
    expect(scene.asked('prepare')).toEqual(['n1', 'n2', 'n3']);
    expect(scene.asked('step')).toEqual(['n1']);
    const head = headOf(scene.at('n1'));
    expect(head).toMatchObject({ kind: 'head', stdin: true });
    expect(head.argv.map(textOf).join(' ')).toMatch(/^prterun --host n1:2,n2:2,n3:2 -n 5 .*\.\/hello$/);
    await endMpi(scene);
    expect((await result).outcome).toMatchObject({ kind: 'job', exitStatus: 0 });
  });

  test.each([
    [{}, 'n1:1,n2:1,n3:1', '3'],
    [{ tasksPerNode: 4 }, 'n1:4,n2:4,n3:4', '12'],
    [{ ranks: 2 }, 'n1:1,n2:1,n3:1', '2'],
    [{ ranks: 7, tasksPerNode: 4 }, 'n1:4,n2:4,n3:4', '7'],
  ])('asked for %j has the hosts %s and %s ranks', async (changes, hosts, ranks) => {
    const scene = await setUp();
    const { result } = await launchMpi(scene, changes);
    expect(headOf(scene.at('n1')).argv.map(textOf).slice(1, 5)).toEqual(['--host', hosts, '-n', ranks]);
    await endMpi(scene);
    await result;
  });

  test('believes no 0 without a daemon on every other node', async () => {
    const scene = await setUp();
    const { result } = await launchMpi(scene);
    scene.at('n1').stream.say({ event: 'daemon-ended', node: 'n2' as NodeName, outcome: GOOD });
    endAll(scene);
    expect((await result).outcome).toMatchObject({ kind: 'failure', code: 'launch-failed' });
    expect(scene.asked('stop')).toEqual(['n1', 'n2', 'n3']);
  });

  test('of more ranks than slots is refused before any node is asked', async () => {
    const scene = await setUp();
    const { result } = await launchMpi(scene, { ranks: 4, tasksPerNode: 1 });
    expect((await errorOf(result)).code).toBe('usage');
    expect(scene.journal).toEqual([]);
  });
});

describe('standard input goes to', () => {
  test.each([
    [undefined, []],
    ['none', []],
    ['all', ['n1', 'n2', 'n3']],
    ['n2', ['n2']],
  ] as const)('%s as %j', async (stdin, readers) => {
    const scene = await setUp();
    const { result, closed } = await launch(scene, { stdin: stdin as LaunchInput['stdin'] });
    const nodes = scene.all.filter((worker) => headOf(worker).stdin).map(({ node }) => node);
    expect(nodes).toEqual(readers);
    await settle();
    expect(scene.all.filter(({ stream }) => stream.stdin === 'input').map(({ node }) => node)).toEqual(
      readers,
    );
    endAll(scene);
    await result;
    expect(closed()).toBe(1);
  });

  test('nobody that is not a node of the launch, which is refused before any node is asked', async () => {
    const scene = await setUp();
    for (const changes of [
      { stdin: 'n9' as NodeName },
      { stdin: 'n3' as NodeName, nodes: 'n[1-2]' },
      { stdin: 'n2' as NodeName, mpi: 'prrte' as const },
    ]) {
      const { result } = await launch(scene, changes);
      expect((await errorOf(result)).code).toBe('node-unknown');
    }
    expect(scene.journal).toEqual([]);
  });
});

describe('a launch that is refused', () => {
  test.each([
    ['n9', 'node-unknown'],
    ['n[1-', 'node-list'],
    ['n1,n1', 'node-list'],
  ])('for its nodes %j asks nobody', async (nodes, code) => {
    const scene = await setUp();
    const { result } = await launch(scene, { nodes });
    expect((await errorOf(result)).code).toBe(code);
    expect(scene.journal).toEqual([]);
  });

  test('because a node does not answer has recorded and started nothing', async () => {
    const scene = await setUp();
    scene.at('n2').die();
    const commits = scene.log.commits;
    const { result } = await launch(scene);
    const error = await errorOf(result);
    expect(error).toMatchObject({
      code: 'launch-refused',
      facts: { unchanged: 'nothing was started on any node' },
    });
    expect(error.message).toMatch(/^not every node answers: n2: no connection to n2/);
    expect(error.facts.detail).toEqual({
      reasons: [{ node: 'n2', code: 'worker-unreachable', message: 'n2: no connection to n2: ECONNREFUSED' }],
    });
    expect(scene.log.commits).toBe(commits);
    expect(scene.journal).toEqual(['n1 challenge', 'n3 challenge']);
  });

  test('because the log is not ours any more has signed and prepared nothing', async () => {
    const scene = await setUp();
    scene.log.failure = new XceError('log-fenced', 'another controller owns the log');
    const { result } = await launch(scene);
    expect((await errorOf(result)).code).toBe('log-fenced');
    expect(scene.journal).toEqual(['n1 challenge', 'n2 challenge', 'n3 challenge']);
  });

  test.each([
    ['is over', 'lease-expired', async () => void (await vi.advanceTimersByTimeAsync(60_000))],
    [
      'is being drained',
      'lease-state',
      async ({ leases }: Scene) => void (await leases.beginDrain(LEASE, [])),
    ],
    [
      'knows another key of a node',
      'worker-key',
      async ({ leases, at }: Scene) =>
        void (await leases.bind(LEASE, [{ ...at('n2').challenge(), workerKey: 'f'.repeat(64) }])),
    ],
  ])('because the lease %s has signed and prepared nothing', async (_, code, change) => {
    const scene = await setUp();
    await change(scene);
    const { result } = await launch(scene);
    expect((await errorOf(result)).code).toBe(code);
    expect([...scene.asked('prepare'), ...scene.journal.filter((entry) => entry.startsWith('sign'))]).toEqual(
      [],
    );
  });

  const refusing = async (codes: Readonly<Record<string, XceError | 'there before' | 'silent'>>) => {
    const scene = await setUp({ names: ['n1', 'n2', 'n3', 'n4'], ttlMs: 600_000 });
    for (const [node, how] of Object.entries(codes)) {
      const worker = scene.at(node);
      worker.on('prepare', () => {
        if (how === 'there before') return { ...worker.prepared(), created: false };
        if (how === 'silent') return new Promise(() => undefined);
        throw how;
      });
    }
    const { result } = await launch(scene);
    await vi.advanceTimersByTimeAsync(REQUEST_TIMEOUT_MS);
    return { scene, error: await errorOf(result) };
  };

  test('by one node undoes what it had prepared, leaves what was there before, and starts nothing', async () => {
    const { scene, error } = await refusing({
      n2: new XceError('uid-taken', '70000 is taken'),
      n3: 'there before',
    });
    expect(error).toMatchObject({ code: 'launch-refused', exitStatus: 69 });
    expect(error.message).toBe('not every node is ready: n2: 70000 is taken');
    expect(error.facts.detail).toEqual({
      reasons: [{ node: 'n2', code: 'uid-taken', message: 'n2: 70000 is taken' }],
    });
    expect(scene.asked('stop')).toEqual(['n1', 'n4']);
    expect(scene.asked('step')).toEqual([]);
    expect(scene.told).toEqual([]);
  });

  test('by several nodes names each of them', async () => {
    const { error } = await refusing({
      n1: new XceError('name-service', 'no answer'),
      n4: new XceError('sandbox-refused', 'not mounted'),
    });
    expect(error.message).toBe('not every node is ready: n1: no answer; n4: not mounted');
    expect(error.facts.detail).toMatchObject({
      reasons: [
        { node: 'n1', code: 'name-service' },
        { node: 'n4', code: 'sandbox-refused' },
      ],
    });
  });

  test('by silence, or by an answer that is none, also stops where nobody knows what was prepared', async () => {
    const { scene, error } = await refusing({
      n2: 'silent',
      n4: new XceError('protocol', 'no answer at all'),
    });
    expect(error.code).toBe('launch-refused');
    expect(scene.asked('stop')).toEqual(['n1', 'n2', 'n3', 'n4']);
  });

  describe('by whoever asked for it', () => {
    const silent = (): Promise<never> => new Promise(() => undefined);
    const names = Array.from({ length: 70 }, (_, index) => `n${index + 1}`);
    /** As many as are asked at the same time. */
    const first = names.slice(0, 64);

    /** A launch whose nodes say nothing from there on, given up; how it ended, without waiting for any of them. */
    const giveUp = async (prepareScene: (scene: Scene) => void) => {
      const scene = await setUp({ names });
      prepareScene(scene);
      const cancelled = new AbortController();
      const { result } = await launch(scene, {}, cancelled);
      cancelled.abort();
      const error = await errorOf(result);
      expect(error).toMatchObject({ code: 'cancelled', message: 'ended before anything was started' });
      expect(scene.asked('step')).toEqual([]);
      expect(scene.told).toEqual([]);
      await scene.context.close();
      return scene;
    };

    test('has no more than two listeners for each node that is asked at the same time', async () => {
      const warnings: Error[] = [];
      const note = (warning: Error): void => void warnings.push(warning);
      process.on('warning', note);
      const scene = await setUp({ names });
      const cancelled = new AbortController();
      const { result } = await launch(scene, { directory: Buffer.from('/work') }, cancelled);
      endAll(scene);
      for (let turn = 0; turn < 10; turn += 1) {
        await settle();
        endAll(scene);
      }
      expect((await result).outcome).toMatchObject({ kind: 'job', exitStatus: 0 });
      expect(getEventListeners(cancelled.signal, 'abort')).toEqual([]);
      process.off('warning', note);
      expect(warnings).toEqual([]);
    });

    test('while nodes are connected to, waits for none of them and asks none', async () => {
      const scene = await giveUp(({ all }) => {
        for (const worker of all) worker.onConnect = silent;
      });
      expect(scene.journal).toEqual([]);
      expect(scene.all.map(({ connections }) => connections)).toEqual(
        names.map((_, at) => (at < 64 ? 1 : 0)),
      );
    });

    test('while nodes say who they are, waits for none of them and records nothing', async () => {
      const scene = await giveUp(({ all }) => {
        for (const worker of all) worker.on('challenge', silent);
      });
      expect(scene.journal).toEqual(first.map((name) => `${name} challenge`));
    });

    test('while nodes prepare, waits for none of them and undoes it on those that were asked', async () => {
      const scene = await giveUp(({ all, at }) => {
        for (const worker of all) worker.on('prepare', silent);
        // Their sandboxes were there before; the next two take their lanes.
        for (const worker of [at('n1'), at('n2')])
          worker.on('prepare', () => ({ ...worker.prepared(), created: false }));
      });
      expect(scene.asked('prepare')).toEqual(names.slice(0, 66).sort());
      expect(scene.asked('stop')).toEqual(names.slice(2, 66).sort());
    });
  });

  test('and cannot be undone everywhere says where, and keeps its reason', async () => {
    const scene = await setUp();
    scene.at('n1').on('stop', () => {
      throw new XceError('node-dirty', 'it could not be ended');
    });
    scene.at('n2').on('prepare', () => {
      throw new XceError('uid-taken', 'taken');
    });
    const { result } = await launch(scene);
    expect((await errorOf(result)).message).toBe('not every node is ready: n2: taken');
    expect(scene.told).toEqual(['could not undo the preparation: n1: it could not be ended']);
  });
});

describe('the storage that the nodes see', () => {
  const mount = { path: '/scratch/xce', source: 'server:/scratch', type: 'nfs', fsid: '00ff' };

  const withMounts = async (mounts: Readonly<Record<string, typeof mount>>) => {
    const scene = await setUp();
    const wanted = request({ job: job('43'), nodes: [...scene.nodes] });
    const { lease } = (await scene.leases.allocate(wanted)).result;
    scene.journal.length = 0;
    for (const worker of scene.all) {
      worker.on('prepare', () => ({ ...worker.prepared(), mounts: [mounts[worker.node] ?? mount] }));
    }
    const { result } = await launch(scene, { selection: { ...selection, job: job('43') } });
    return { scene, result, lease };
  };

  test('is recorded before any step starts', async () => {
    const { scene, result, lease } = await withMounts({});
    expect(scene.journal.indexOf('log mounts')).toBeGreaterThan(scene.journal.lastIndexOf('n3 prepare'));
    expect(scene.journal.indexOf('log mounts')).toBeLessThan(scene.journal.indexOf('n1 step'));
    expect((await scene.leases.show({ lease: lease.lease })).mounts).toEqual([mount]);
    endAll(scene);
    await result;
  });

  test('must be the same: else nothing starts and every node is stopped, and the first storage is known', async () => {
    const { scene, result, lease } = await withMounts({ n3: { ...mount, fsid: '1234' } });
    const error = await errorOf(result);
    expect(error).toMatchObject({ code: 'mount-changed', facts: { at: 'n3' } });
    expect(scene.asked('step')).toEqual([]);
    expect(scene.asked('stop')).toEqual(['n1', 'n2', 'n3']);
    expect((await scene.leases.show({ lease: lease.lease })).mounts).toEqual([mount]);
  });
});
