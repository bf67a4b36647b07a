import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { NodeName } from '../../../src/base/ids.ts';
import {
  askAll,
  atNode,
  createFleet,
  failures,
  joinFailures,
  tellFailures,
  values,
} from '../../../src/launch/fleet.ts';
import { fakeWorkers } from '../../support/fake-sessions.ts';

const N1 = 'n1' as NodeName;

const setUp = () => {
  const workers = fakeWorkers(['n1', 'n2']);
  return { n1: workers.at('n1'), n2: workers.at('n2'), fleet: createFleet(workers.connect) };
};

/** A promise that the test settles. */
const gate = () => {
  let open = (): void => undefined;
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open: () => open() };
};

const errorOf = async (work: Promise<unknown>): Promise<XceError> => {
  try {
    await work;
  } catch (error) {
    if (error instanceof XceError) return error;
    throw error;
  }
  throw new Error('it did not fail');
};

const turns = async (): Promise<void> => {
  for (let turn = 0; turn < 20; turn += 1) await Promise.resolve();
};

describe('a fleet', () => {
  test('opens one connection per node, also for those that ask at the same time', async () => {
    const { n1, n2, fleet } = setUp();
    const [first, second, other] = await Promise.all([
      fleet.session(N1),
      fleet.session(N1),
      fleet.session(n2.node),
    ]);
    expect(second).toBe(first);
    expect(other).not.toBe(first);
    expect(await fleet.session(N1)).toBe(first);
    expect([n1.connections, n2.connections]).toEqual([1, 1]);
  });

  test('connects again once a connection is closed, and then once', async () => {
    const { n1, fleet } = setUp();
    const first = await fleet.session(N1);
    n1.lose();
    const [second, third] = await Promise.all([fleet.session(N1), fleet.session(N1)]);
    expect(second).not.toBe(first);
    expect(third).toBe(second);
    expect(n1.connections).toBe(2);
    expect(n1.sessions.size).toBe(1);
  });

  test('connects again once a connection takes no more requests, and closes both in the end', async () => {
    const { n1, fleet } = setUp();
    const first = await fleet.session(N1);
    for (const session of n1.sessions) session.isEnding = true;
    const [second, third] = await Promise.all([fleet.session(N1), fleet.session(N1)]);
    expect(second).not.toBe(first);
    expect(third).toBe(second);
    expect(first.closed.aborted).toBe(false);
    fleet.close();
    await expect.poll(() => [first.closed.aborted, second.closed.aborted]).toEqual([true, true]);
  });

  test('forgets a connection that ended late, and not the one that took its place', async () => {
    const { n1, fleet } = setUp();
    await fleet.session(N1);
    const [old] = n1.sessions;
    if (old === undefined) throw new Error('no session');
    old.isEnding = true;
    const second = await fleet.session(N1);
    old.close();
    expect(await fleet.session(N1)).toBe(second);
    expect(n1.connections).toBe(2);
  });

  test('lets whoever gives up go at once, and others wait on', async () => {
    const { n1, fleet } = setUp();
    let connected = (): void => undefined;
    n1.onConnect = () =>
      new Promise((resolve) => {
        connected = resolve;
      });
    const hurry = new AbortController();
    const given = fleet.session(N1, hurry.signal);
    const waiting = fleet.session(N1);
    hurry.abort();
    await expect(given).rejects.toMatchObject({ code: 'cancelled', facts: { at: 'n1' } });
    connected();
    expect(await waiting).toHaveProperty('node', 'n1');
    expect(n1.connections).toBe(1);
    await expect(fleet.session(N1, hurry.signal)).rejects.toMatchObject({ code: 'cancelled' });
  });

  test('keeps no connection that was closed as soon as it was open', async () => {
    const { n1 } = setUp();
    const fleet = createFleet(async () => {
      const session = await n1.connect();
      if (n1.connections === 1) session.close();
      return session;
    });
    expect((await fleet.session(N1)).closed.aborted).toBe(false);
  });

  test('keeps no failure, and names the node to everybody who waited for it', async () => {
    const { n1, fleet } = setUp();
    n1.onConnect = async () => {
      await Promise.resolve();
      throw new XceError('timeout', 'no answer');
    };
    const errors = await Promise.all([errorOf(fleet.session(N1)), errorOf(fleet.session(N1))]);
    expect(errors.map(({ code, message, facts }) => [code, message, facts.at])).toEqual([
      ['timeout', 'n1: no answer', 'n1'],
      ['timeout', 'n1: no answer', 'n1'],
    ]);
    expect(n1.connections).toBe(1);
    n1.onConnect = () => undefined;
    expect((await fleet.session(N1)).node).toBe('n1');
  });

  test('that is closed closes what is open and what is still being opened, and opens nothing more', async () => {
    const { n1, n2, fleet } = setUp();
    const open = await fleet.session(N1);
    const { opened, open: goOn } = gate();
    n2.onConnect = () => opened;
    const late = errorOf(fleet.session(n2.node));
    fleet.close();
    goOn();
    expect(await late).toMatchObject({ code: 'cancelled', facts: { at: 'n2' } });
    await turns();
    expect(open.closed.aborted).toBe(true);
    expect([n1.sessions.size, n2.sessions.size]).toEqual([0, 0]);
    expect((await errorOf(fleet.session(N1))).code).toBe('cancelled');
    expect(n1.connections).toBe(1);
    fleet.close();
  });

  test('that is closed while a connection fails has nothing left to complain about', async () => {
    const { n2, fleet } = setUp();
    const { opened, open: goOn } = gate();
    n2.onConnect = async () => {
      await opened;
      throw new XceError('worker-unreachable', 'refused');
    };
    const late = errorOf(fleet.session(n2.node));
    fleet.close();
    goOn();
    expect((await late).code).toBe('worker-unreachable');
    await turns();
  });
});

describe('an error at a node', () => {
  test('keeps its code and facts and says where', () => {
    const error = atNode(N1, new XceError('node-dirty', 'pid 4 lives', { at: '/proc/4', next: 'kill it' }));
    expect(error).toMatchObject({ code: 'node-dirty', message: 'n1: pid 4 lives' });
    expect(error.facts).toMatchObject({ at: 'n1', next: 'kill it' });
  });

  test('that names the node already is left as it is; one that only points to it is not', () => {
    const named = new XceError('worker-key', 'n1 has another key', { at: 'n1' });
    expect(atNode(N1, named)).toBe(named);
    expect(atNode(N1, new XceError('worker-key', 'another key', { at: 'n1' })).message).toBe(
      'n1: another key',
    );
  });

  test.each([new TypeError('x is not a function'), 'a text'])('that is not ours is a bug: %s', (thrown) => {
    const error = atNode(N1, thrown);
    expect(error).toMatchObject({ code: 'bug', facts: { at: 'n1' } });
    expect(error.message).toMatch(/^n1: (x is not|a text)/);
  });
});

describe('asking all', () => {
  const many = Array.from({ length: 200 }, (_, index) => `n${index}` as NodeName);

  test('has no more than 64 in flight and keeps the order of the nodes', async () => {
    let inFlight = 0;
    let most = 0;
    const answers = await askAll(many, async (node) => {
      inFlight += 1;
      most = Math.max(most, inFlight);
      // The later a node was asked, the sooner it answers.
      for (let turn = Number(node.slice(1)); turn < 200; turn += 1) await Promise.resolve();
      inFlight -= 1;
      return node.toUpperCase();
    });
    expect(most).toBe(64);
    expect(values(answers).map(({ value }) => value)).toEqual(many.map((node) => node.toUpperCase()));
  });

  test('takes another bound', async () => {
    let inFlight = 0;
    let most = 0;
    const ask = async (): Promise<void> => {
      inFlight += 1;
      most = Math.max(most, inFlight);
      await Promise.resolve();
      inFlight -= 1;
    };
    await askAll(many, ask, 150);
    expect(most).toBe(150);
  });

  test('never throws: what one node throws, in whatever way, is its answer', async () => {
    const answers = await askAll(many.slice(0, 4), (node) => {
      if (node === 'n1') throw new TypeError('at once');
      if (node === 'n2') return Promise.reject(new XceError('worker-busy', 'no room'));
      return Promise.resolve(node);
    });
    expect(answers.map((answer) => (answer.ok ? answer.value : answer.error.code))).toEqual([
      'n0',
      'bug',
      'worker-busy',
      'n3',
    ]);
    expect(failures(answers).map(({ message }) => message)).toEqual(['n1: at once', 'n2: no room']);
  });

  test('nobody gives nothing', async () => {
    expect(await askAll([], async () => 1)).toEqual([]);
  });
});

describe('failures of several nodes', () => {
  const failed = Array.from({ length: 11 }, (_, index) =>
    atNode(`n${index}` as NodeName, new XceError(index === 0 ? 'uid-taken' : 'timeout', 'no')),
  );

  test('are one error that tells each reason once with its nodes, and has all of them in its detail', () => {
    const error = joinFailures(failed, 'not every node is ready', { unchanged: 'everything' });
    expect(error).toMatchObject({ code: 'uid-taken', facts: { unchanged: 'everything', cause: failed[0] } });
    expect(error?.message).toBe('not every node is ready: n[0-10]: no');
    const reasons = error?.facts.detail?.['reasons'];
    expect(reasons).toHaveLength(11);
    expect(reasons).toContainEqual({ node: 'n10', code: 'timeout', message: 'n10: no' });
  });

  const at = (node: string, message: string) => new XceError('timeout', message, { at: node });

  test('say the same only if nothing but the name of the node differs', () => {
    expect(
      tellFailures([
        at('n1', 'cannot connect to n1 port 7713: ECONNREFUSED'),
        at('n10', 'n10: n1 is not there'),
        at('n2', 'cannot connect to n2 port 7713: ECONNREFUSED'),
        at('n10.example', 'cannot connect to n10.example port 7713: ECONNREFUSED'),
        at('n3', 'cannot connect to n3 port 7714: ECONNREFUSED'),
        at('/etc/xce', 'no key'),
      ]),
    ).toBe(
      'cannot connect to n[1-2],n10.example port 7713: ECONNREFUSED; n10: n1 is not there; ' +
        'cannot connect to n3 port 7714: ECONNREFUSED; no key',
    );
  });

  test('name every node, also where the reasons are too many to be told', () => {
    const text = tellFailures(Array.from({ length: 40 }, (_, index) => at(`n${index}`, `reason ${index}x`)));
    expect(text).toMatch(/^reason 0x; .*; reason 15x; and other reasons on n\[16-39\]$/);
  });

  test('take a code of their own', () => {
    expect(joinFailures(failed, 'no', { code: 'launch-refused' })?.code).toBe('launch-refused');
  });

  test('that are none are no error', () => {
    expect(joinFailures([], 'no')).toBe(undefined);
    expect(tellFailures([])).toBe('');
  });
});
