import { describe, expect, test } from 'vitest';
import { type ErrorCode, XceError } from '../../../src/base/errors.ts';
import { LIMITS } from '../../../src/base/limits.ts';
import type { LogFiles } from '../../../src/os/log-files.ts';
import { encodeComplete, encodeFrame, encodeHeader } from '../../../src/wal/encoder.ts';
import { EpochLog } from '../../../src/wal/epoch-log.ts';
import type { Machine } from '../../../src/wal/machine.ts';
import { FILE_START, TYPE } from '../../../src/wal/record.ts';
import { type Fate, GO, type Plan, type Step } from '../../crash/simulated-disk.ts';
import { type Controller, decideGrant, grantMachine, World } from '../../crash/world.ts';

const refusalOf = async (run: Promise<unknown>): Promise<XceError> => {
  try {
    await run;
  } catch (error) {
    if (error instanceof XceError) return error;
    throw error;
  }
  throw new Error('it was not refused');
};
const codeOf = async (run: Promise<unknown>): Promise<ErrorCode> => (await refusalOf(run)).code;

/** A world whose host `a` owns a log with grants to these names, each one record. */
const withGrants = async (...names: string[]): Promise<{ world: World; owner: Controller }> => {
  const world = new World();
  const owner = world.controller('a');
  await owner.log.init();
  for (const name of names) await owner.grant(name);
  return { world, owner };
};

/** What was in the log before its last record, and that record: `write` commits it as a process that then dies. */
const withUnacknowledged = async (): Promise<{ world: World; whole: Buffer; from: number }> => {
  const { world } = await withGrants('one', 'two', 'three', 'four');
  const path = world.epochPath(1);
  const from = world.disk.bytesOf(path)?.length ?? 0;
  const killed = world.controller('a', ({ call, path: at }) =>
    call === 'sync' && at === path ? { kind: 'kill' } : GO,
  );
  // the first fsync of a commit comes before it reads: let that one pass
  let syncs = 0;
  killed.process.plan = ({ call, path: at }) => {
    if (call !== 'sync' || at !== path) return GO;
    syncs += 1;
    return syncs === 2 ? { kind: 'kill' } : GO;
  };
  await killed.grant('five').catch(() => undefined);
  const whole = world.disk.bytesOf(path) ?? Buffer.alloc(0);
  expect(whole.length).toBeGreaterThan(from);
  return { world, whole, from };
};

const onLog =
  (call: Step['call'], fate: Fate, skip = 0): Plan =>
  (step) => {
    if (step.call !== call || !/^\/log\/leases\.wal\.[0-9]+$/.test(step.path)) return GO;
    skip -= 1;
    return skip < 0 ? fate : GO;
  };

describe('init', () => {
  test('makes a log that its host owns and others can read', async () => {
    const world = new World();
    const position = await world.controller('a').log.init();
    expect(position).toMatchObject({ epoch: 1, host: 'a' });
    const view = await world.controller('b').log.read();
    expect(view).toMatchObject({ ...position, owned: false, tornBytes: 0 });
    expect(view.state.size).toBe(0);
    expect((await world.controller('a').log.read()).owned).toBe(true);
  });

  test.each([
    'leases.wal',
    'leases.wal.1',
    'leases.wal.2',
    'leases.wal.bak',
    'leases.wal.torn',
    'leases.wal.new.2.0000000000000000',
    'old.bak',
    'tail.torn',
  ])('refuses a directory that holds %s', async (name) => {
    const world = new World();
    world.disk.put(`/log/${name}`, Buffer.alloc(0));
    const refusal = await refusalOf(world.controller('a').log.init());
    expect(refusal.code).toBe('log-exists');
    expect(refusal.message).toContain(name);
    expect(world.disk.pathsBelow('/log')).toEqual([`/log/${name}`]);
  });

  test('refuses where this host has a token or a memory of a log', async () => {
    const { world } = await withGrants('one');
    world.disk.remove(world.epochPath(1));
    expect(await refusalOf(world.controller('a').log.init())).toMatchObject({
      code: 'log-exists',
      facts: { at: '/run/a' },
    });
    world.disk.erase('/run/a');
    expect(await refusalOf(world.controller('a').log.init())).toMatchObject({
      code: 'log-exists',
      facts: { at: '/var/a/seen.json' },
    });
    expect(world.disk.pathsBelow('/log')).toEqual([]);
  });

  test('does not make the directory', async () => {
    const world = new World();
    expect(await codeOf(world.controller('a', () => GO, { directory: '/elsewhere' }).log.init())).toBe(
      'log-missing',
    );
  });

  test('is not kept from its work by what an interrupted one left', async () => {
    const world = new World();
    await world
      .controller('a', onLog('link', { kind: 'kill' }))
      .log.init()
      .catch(() => undefined);
    expect(world.disk.pathsBelow('/log')).toHaveLength(1);
    await world.controller('a').log.init();
    expect(world.disk.pathsBelow('/log')).toEqual([world.epochPath(1)]);
  });
});

describe('a log that is not there', () => {
  test('is refused by every command but init, and nothing is made', async () => {
    const world = new World();
    const { log, grant } = world.controller('a');
    expect(await codeOf(log.read())).toBe('log-missing');
    expect(await codeOf(grant('one'))).toBe('log-missing');
    expect(await codeOf(log.takeover())).toBe('log-missing');
    expect(await codeOf(log.compact())).toBe('log-missing');
    expect(world.disk.pathsBelow('/log')).toEqual([]);
  });

  test('is missing also when only a backup is there, or the directory is not', async () => {
    const world = new World();
    world.disk.put('/log/leases.wal.bak', Buffer.from('old'));
    expect(await codeOf(world.controller('a').grant('one'))).toBe('log-missing');
    const elsewhere = world.controller('a', () => GO, { directory: '/elsewhere' });
    expect(await codeOf(elsewhere.grant('one'))).toBe('log-missing');
  });

  test('of no bytes is nobody’s, and can be neither read nor written', async () => {
    const world = new World();
    world.disk.put(world.epochPath(1), Buffer.alloc(0));
    expect(await codeOf(world.controller('a').grant('one'))).toBe('log-corrupt');
    expect(await codeOf(world.controller('a').log.read())).toBe('log-corrupt');
    expect(await codeOf(world.controller('a').log.takeover())).toBe('log-corrupt');
    expect(world.disk.pathsBelow('/log')).toEqual([world.epochPath(1)]);
  });

  test('with a number missing is refused', async () => {
    const { world, owner } = await withGrants('one');
    await owner.log.compact();
    await owner.log.compact();
    world.disk.remove(world.epochPath(2));
    expect(await codeOf(world.controller('a').grant('two'))).toBe('log-corrupt');
    expect(await codeOf(world.controller('b').log.read())).toBe('log-corrupt');
    expect(await codeOf(world.controller('b').log.takeover())).toBe('log-corrupt');
  });

  test('in whose place something else than a file stands is refused', async () => {
    const { world } = await withGrants('one');
    world.disk.put(world.epochPath(1), Buffer.alloc(0), false);
    expect(await codeOf(world.controller('a').grant('two'))).toBe('log-corrupt');
    expect(await codeOf(world.controller('b').log.read())).toBe('log-corrupt');
  });
});

describe('commit', () => {
  test('shows each decision what the ones before it did, and the answer where its record is', async () => {
    const { world, owner } = await withGrants('one', 'two');
    const committed = await owner.grant('three');
    expect(committed).toMatchObject({ result: 3, notices: [], position: { epoch: 1, host: 'a' } });
    const again = await owner.grant('three');
    expect(again).toMatchObject({ result: 3, position: committed.position });
    expect((await world.replay()).get(3)).toEqual({ by: 'three', isWhole: true });
  });

  test('writes nothing for a refusal, which reaches the caller unchanged', async () => {
    const { world, owner } = await withGrants('one');
    const before = world.disk.bytesOf(world.epochPath(1));
    const refusal = new XceError('pool-exhausted', 'no uid is free');
    const run = owner.log.commit(() => {
      throw refusal;
    });
    await expect(run).rejects.toBe(refusal);
    expect(world.disk.bytesOf(world.epochPath(1))).toEqual(before);
    await owner.grant('two');
  });

  test('puts what waits together into one record, each decision after the other', async () => {
    const { world, owner } = await withGrants();
    const sequences = await Promise.all(
      ['one', 'two', 'three', 'four'].map(async (by) => (await owner.grant(by)).position.sequence),
    );
    // the first had its turn at once or took the others along; no more than two records in any case
    expect(new Set(sequences).size).toBeLessThanOrEqual(2);
    expect([...(await world.replay()).keys()]).toEqual([1, 2, 3, 4]);
  });

  test('gives a refusal to the one it belongs to, and a record to the others', async () => {
    const { world, owner } = await withGrants();
    const refusal = new XceError('lease-state', 'no');
    const all = await Promise.allSettled([
      owner.grant('one'),
      owner.log.commit(() => {
        throw refusal;
      }),
      owner.grant('two'),
    ]);
    expect(all.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
    expect([...(await world.replay()).values()].map(({ by }) => by)).toEqual(['one', 'two']);
  });

  test('refuses events that do not fit into one record, and keeps the others', async () => {
    const { world, owner } = await withGrants();
    const by = 'x'.repeat(LIMITS.recordBytesMax / 2);
    const large = owner.log.commit(() => ({
      events: [1, 2, 3].map((uid) => ({ uid, by, part: 1 as const })),
      result: null,
    }));
    const small = owner.grant('one');
    expect(await codeOf(large)).toBe('too-large');
    await small;
    expect([...(await world.replay()).keys()]).toEqual([1]);
  });

  test('spreads commits over records where they do not fit into one', async () => {
    const { world, owner } = await withGrants();
    const names = ['a', 'b', 'c', 'd', 'e'].map((letter) => letter.repeat(LIMITS.recordBytesMax / 5));
    const positions = await Promise.all(names.map(async (by) => (await owner.grant(by)).position.sequence));
    expect(new Set(positions).size).toBeGreaterThan(2);
    expect((await world.replay()).size).toBe(5);
  });

  test('refuses an event that its own state does not take, before it is written', async () => {
    const { world, owner } = await withGrants('one');
    const before = world.disk.bytesOf(world.epochPath(1));
    const wrong = owner.log.commit(() => ({
      events: [
        { uid: 2, by: 'two', part: 1 as const },
        { uid: 1, by: 'two', part: 1 as const },
      ],
      result: null,
    }));
    const right = owner.grant('three');
    expect(await codeOf(wrong)).toBe('log-corrupt');
    expect(world.disk.bytesOf(world.epochPath(1))?.subarray(0, before?.length)).toEqual(before);
    expect((await right).result).toBe(2);
    expect([...(await world.replay()).values()].map(({ by }) => by)).toEqual(['one', 'three']);
  });

  test('says how far the clocks of storage and host are apart, as the last record shows', async () => {
    const { world, owner } = await withGrants('one');
    world.disk.nowMs -= 646_000;
    // the record bears the host's clock; here both are one, so the storage's is set back behind its back
    const bytes = world.disk.bytesOf(world.epochPath(1)) ?? Buffer.alloc(0);
    world.disk.put(world.epochPath(1), bytes);
    const skew = await owner.log.commit((_, { skewMs }) => ({ events: [], result: skewMs }));
    expect(skew.result).toBe(-646_000);
  });

  test('says how far the clock of the host was set since it owns the log, until it is taken over', async () => {
    const { world, owner } = await withGrants('one');
    const stepNow = async (): Promise<number | undefined> =>
      (await owner.log.commit((_, { stepMs }) => ({ events: [], result: stepMs }))).result;
    const atOnce = (await stepNow()) ?? Number.NaN;
    world.disk.nowMs += 3_600_000;
    expect(Math.abs(((await stepNow()) ?? 0) - atOnce - 3_600_000)).toBeLessThan(60_000);
    // what the owner does by itself says nothing of its clock
    await owner.grant('two');
    await owner.log.compact();
    expect(await stepNow()).toBeGreaterThan(3_500_000);
    await owner.log.takeover();
    expect(Math.abs((await stepNow()) ?? Number.NaN)).toBeLessThan(60_000);
  });

  test('by another host is refused with the name of the owner, and writes nothing', async () => {
    const { world } = await withGrants('one');
    const before = world.disk.bytesOf(world.epochPath(1));
    const refusal = await refusalOf(world.controller('b').grant('two'));
    expect(refusal).toMatchObject({ code: 'log-fenced', facts: { detail: { owner: 'a' } } });
    expect(refusal.message).toContain('a');
    expect(world.disk.bytesOf(world.epochPath(1))).toEqual(before);
    expect(world.disk.pathsBelow('/log')).toHaveLength(1);
  });

  test('after a restart of the host is refused until it takes the next epoch', async () => {
    const { world } = await withGrants('one');
    world.reboot('a');
    expect(await codeOf(world.controller('a').grant('two'))).toBe('log-fenced');
    await world.controller('a').log.takeover();
    expect((await world.controller('a').grant('two')).position.epoch).toBe(2);
  });

  test.each([
    ['that is empty', Buffer.alloc(0), true, 'log-fenced'],
    ['that says something else', Buffer.from('host=a pid=1\n'), true, 'log-fenced'],
    ['that is no file', Buffer.alloc(0), false, 'io'],
  ] as const)('with a token file %s is refused', async (_, bytes, isRegular, code) => {
    const { world } = await withGrants('one');
    world.disk.put('/run/a/epoch-1.token', bytes, isRegular);
    expect(await codeOf(world.controller('a').grant('two'))).toBe(code);
    expect((await world.replay()).size).toBe(1);
  });

  test('waits for another process of the host, and gives up at the deadline', async () => {
    const { world } = await withGrants('one');
    let go: () => void = () => undefined;
    const until = new Promise<void>((resolve) => {
      go = resolve;
    });
    const slow = world.controller('a', onLog('append', { kind: 'stop', until }));
    const running = slow.grant('slow');
    expect(await codeOf(world.controller('a').grant('impatient'))).toBe('log-busy');
    const patient = world.controller('a', () => GO, { lockTimeoutMs: 1e9 }).grant('patient');
    go();
    expect((await running).result).toBe(2);
    expect((await patient).result).toBe(3);
  });

  test.each(['ENOLCK', 'ENOSYS', 'EOPNOTSUPP', 'EBADF'])(
    'is refused where locking the log gives %s, whatever other locks there are',
    async (errno) => {
      const { world } = await withGrants('one');
      const before = world.disk.bytesOf(world.epochPath(1));
      const refusal = await refusalOf(
        world.controller('a', onLog('tryLock', { kind: 'fail', errno })).grant('two'),
      );
      expect(refusal.code).toBe('storage-unfit');
      expect(refusal.message).toBe(`no cluster-wide lock on ${world.epochPath(1)}: ${errno}`);
      expect(world.disk.bytesOf(world.epochPath(1))).toEqual(before);
      expect((await world.controller('a').grant('two')).result).toBe(2);
    },
  );
});

describe('a torn tail', () => {
  test('cut at any byte does not count, stays where it is, and the next commit takes the next epoch', async () => {
    const { world, whole, from } = await withUnacknowledged();
    const [log, run, memory] = ['/log', '/run/a', '/var/a'].map(
      (path) => [path, world.disk.copyOf(path)] as const,
    );
    if (log === undefined || run === undefined || memory === undefined) throw new Error('no copies');
    for (let length = from; length < whole.length; length++) {
      for (const [path, copy] of [log, run, memory]) world.disk.putBack(path, copy);
      const torn = whole.subarray(0, length);
      world.disk.put(world.epochPath(1), torn);
      const view = await world.controller('b').log.read();
      expect(view.tornBytes).toBe(length - from);
      expect([...view.state.values()].map(({ by }) => by)).toEqual(['one', 'two', 'three', 'four']);
      const committed = await world.controller('a').grant('99');
      expect(committed).toMatchObject({ result: 5, position: { epoch: 2 } });
      const notice = { kind: 'torn-tail', path: world.epochPath(1), offset: from, bytes: length - from };
      expect(committed.notices.filter(({ kind }) => kind === 'torn-tail')).toEqual(
        length > from ? [notice] : [],
      );
      expect(world.disk.bytesOf(world.epochPath(1))).toEqual(torn);
      expect([...(await world.replay()).values()].map(({ by }) => by)).toEqual([
        'one',
        'two',
        'three',
        'four',
        '99',
      ]);
    }
  });

  test('is found also when nobody marked it', async () => {
    const { world, whole, from } = await withUnacknowledged();
    const token = world.disk.bytesOf('/run/a/epoch-1.token')?.toString().replace('busy', 'idle') ?? '';
    world.disk.put('/run/a/epoch-1.token', Buffer.from(token));
    world.disk.put(world.epochPath(1), whole.subarray(0, from + 9));
    const committed = await world.controller('a').grant('99');
    expect(committed.notices.map(({ kind }) => kind)).toEqual(['torn-tail', 'epoch-taken']);
  });
});

describe('a record that is on its way', () => {
  test('looks damaged to a reader once, and whole when it looks again', async () => {
    const { world } = await withGrants('one', 'two');
    const path = world.epochPath(1);
    const whole = world.disk.bytesOf(path) ?? Buffer.alloc(0);
    let reads = 0;
    const reader = world.controller('b', ({ call, path: at }) => {
      if (call !== 'read' || at !== path) return GO;
      reads += 1;
      // its first page has not arrived yet, its last one has
      const view = Buffer.from(whole).fill(0, whole.length - 60, whole.length - 10);
      world.disk.alter(path, () => (reads === 1 ? view : whole));
      return GO;
    });
    expect((await reader.log.read()).state.size).toBe(2);
    expect(reads).toBeGreaterThan(1);
  });

  test('and is lost in the end was never seen, as far as a reader remembers', async () => {
    const { world, from } = await withUnacknowledged();
    const { state } = await world.controller('b').log.read();
    expect(state.size).toBe(5);
    world.disk.alter(world.epochPath(1), (bytes) => bytes.subarray(0, from));
    expect((await world.controller('b').log.read()).state.size).toBe(4);
  });
});

describe('corruption', () => {
  test('at any byte is refused by every command with its offset, and nothing is written', async () => {
    const { world } = await withGrants('one', 'two');
    const path = world.epochPath(1);
    const whole = world.disk.bytesOf(path) ?? Buffer.alloc(0);
    for (let at = 0; at < whole.length; at += 1) {
      const bytes = Buffer.from(whole);
      bytes[at] = (bytes[at] ?? 0) ^ (1 << (at % 8));
      world.disk.put(path, bytes);
      for (const run of [
        () => world.controller('b').log.read(),
        () => world.controller('a').grant('99'),
        ...(at % 8 === 0 ? [() => world.controller('b').log.takeover()] : []),
      ]) {
        const refusal = await refusalOf(run());
        expect(refusal.code).toBe('log-corrupt');
        expect(refusal.facts.at).toMatch(/^\/log\/leases\.wal\.1:[0-9]+$/);
      }
      expect(world.disk.bytesOf(path)).toEqual(bytes);
      expect(world.disk.pathsBelow('/log')).toEqual([path]);
    }
  });
});

describe('another log in its place', () => {
  test('of another cluster or instance is refused', async () => {
    const { world } = await withGrants('one');
    for (const options of [{ cluster: 'other' }, { instance: 'other' }]) {
      expect(await codeOf(world.controller('b', () => GO, options).log.read())).toBe('log-foreign');
      expect(await codeOf(world.controller('b', () => GO, options).log.takeover())).toBe('log-foreign');
    }
  });

  test('that is older than this host has seen is refused by all it does', async () => {
    const { world, owner } = await withGrants('one');
    const older = world.disk.copyOf('/log');
    await owner.grant('two');
    world.disk.putBack('/log', older);
    for (const run of [
      () => world.controller('a').grant('three'),
      () => world.controller('a').log.read(),
      () => world.controller('a').log.takeover(),
      () => owner.grant('three'),
    ]) {
      expect(await codeOf(run())).toBe('log-rollback');
    }
    expect(world.disk.copyOf('/log')).toEqual(older);
  });

  test('that lacks an epoch this host has seen, or has another in its place, is refused', async () => {
    const { world, owner } = await withGrants('one');
    const older = world.disk.copyOf('/log');
    await owner.log.compact();
    await owner.grant('two');
    await owner.log.close();
    world.disk.putBack('/log', older);
    expect(await codeOf(world.controller('a').log.read())).toBe('log-rollback');
    await world.controller('b').log.takeover();
    await world.controller('b').grant('other');
    expect(await codeOf(world.controller('a').log.read())).toBe('log-rollback');
    expect(await codeOf(world.controller('a').log.takeover())).toBe('log-rollback');
  });

  test('that went on from an older state is refused', async () => {
    const { world, owner } = await withGrants('one');
    const older = world.disk.copyOf('/log');
    await owner.grant('two');
    world.disk.putBack('/log', older);
    await world.controller('b').log.takeover();
    expect(await codeOf(world.controller('a').log.read())).toBe('log-rollback');
  });

  test('that is newer by other hosts is no rollback', async () => {
    const { world } = await withGrants('one');
    await world.controller('b').log.takeover();
    await world.controller('b').grant('two');
    await world.controller('c').log.takeover();
    await world.controller('c').grant('three');
    expect((await world.controller('a').log.read()).state.size).toBe(3);
    await world.controller('a').log.takeover();
    expect((await world.controller('a').grant('four')).result).toBe(4);
  });

  test('whose memory cannot be read is not gone on with', async () => {
    const { world } = await withGrants('one');
    for (const text of ['', '{', '{}', '{"format":2}', '[]', '{"format":1,"cluster":"c","instance":"x"}']) {
      world.disk.put('/var/a/seen.json', Buffer.from(text));
      expect(await codeOf(world.controller('a').grant('two'))).toBe('log-rollback');
    }
  });

  test('is remembered by hosts that only read, as far as it was acknowledged', async () => {
    const { world, owner } = await withGrants('one', 'two');
    await world.controller('b').log.read();
    expect(String(world.disk.bytesOf('/var/b/seen.json'))).toMatch(/^\{"format":1,.*"epoch":1,/);
    const older = world.disk.copyOf('/log');
    await owner.grant('three');
    await world.controller('b').log.read();
    await owner.grant('four');
    await world.controller('b').log.read();
    world.disk.putBack('/log', older);
    expect(await codeOf(world.controller('b').log.read())).toBe('log-rollback');
  });
});

describe('storage in trouble', () => {
  test('that fails to close what a failed commit gives up: every commit hears of it, and nothing stays open', async () => {
    const world = new World();
    const ports = world.portsOf('a');
    const closed: string[] = [];
    let isBroken = false;
    const files: LogFiles = {
      ...ports.files,
      open: async (path, purpose) => {
        const file = await ports.files.open(path, purpose);
        return {
          ...file,
          sync: async () => {
            if (isBroken) throw Object.assign(new Error('sync'), { code: 'EIO' });
            await file.sync();
          },
          close: async () => {
            await file.close();
            closed.push(path);
            if (isBroken) throw Object.assign(new Error('close'), { code: 'EIO' });
          },
        };
      },
    };
    const log = new EpochLog({ ...ports, files }, world.optionsOf('a'), grantMachine);
    await log.init();
    const grant = (by: string) => log.commit((state) => decideGrant(state, by));
    await grant('one');
    closed.length = 0;
    isBroken = true;
    const outcomes = await Promise.allSettled(['two', 'three'].map(grant));
    expect(outcomes.map(({ status }) => status)).toEqual(['rejected', 'rejected']);
    expect(closed.sort()).toEqual([world.epochPath(1), '/run/a/epoch-1.token']);
    isBroken = false;
    expect((await grant('four')).result).toBe(2);
  });

  test.each(['EIO', 'ENOSPC', 'EDQUOT', 'ESTALE'])(
    'that fails an append with %s: the next epoch says that the record does not count',
    async (errno) => {
      const { world, owner } = await withGrants('one');
      owner.process.plan = onLog('append', { kind: 'fail', errno });
      let failures = 0;
      const once = owner.process.plan;
      owner.process.plan = (step) => {
        const fate = failures === 0 ? once(step) : GO;
        if (fate !== GO) failures += 1;
        return fate;
      };
      const refusal = await refusalOf(owner.grant('two'));
      expect(refusal.code).toBe('log-io');
      expect(refusal.message).toContain(errno);
      expect((await owner.grant('three')).result).toBe(2);
      expect(await world.findBroken()).toEqual([]);
    },
  );

  test('whose fsync fails once: the record counts by the next epoch, not by asking again', async () => {
    const { world, owner } = await withGrants('one');
    let syncs = 0;
    owner.process.plan = ({ call, path }) => {
      if (call !== 'sync' || path !== world.epochPath(1)) return GO;
      syncs += 1;
      return syncs === 2 ? { kind: 'fail', errno: 'EIO' } : GO;
    };
    const committed = await owner.grant('two');
    expect(committed.position.epoch).toBe(2);
    expect(committed.notices).toEqual([expect.objectContaining({ kind: 'epoch-taken', epoch: 2 })]);
    expect((await owner.grant('three')).result).toBe(3);
    world.disk.powerCut('/log', 'all lost');
    expect(await world.findBroken()).toEqual([]);
  });

  describe('that says it has written', () => {
    /** Lets a change happen to the log between the append of a record and its fsync. */
    const grantWith = async (change: (bytes: Buffer, from: number) => Buffer) => {
      const { world, owner } = await withGrants('one');
      const path = world.epochPath(1);
      const from = world.disk.bytesOf(path)?.length ?? 0;
      let isChanged = false;
      owner.process.plan = ({ call, path: at }) => {
        const isWritten = (world.disk.bytesOf(path)?.length ?? 0) > from;
        if (call === 'sync' && at === path && isWritten && !isChanged) {
          isChanged = true;
          world.disk.alter(path, (bytes) => change(bytes, from));
        }
        return GO;
      };
      return { world, granting: owner.grant('two') };
    };

    test('and has not: the record does not count, and nobody was told that it does', async () => {
      const { world, granting } = await grantWith((bytes, from) => bytes.subarray(0, from));
      expect(await codeOf(granting)).toBe('log-io');
      expect((await world.controller('a').grant('three')).result).toBe(2);
      expect(await world.findBroken()).toEqual([]);
    });

    test('and has written other bytes: the outcome is unknown, and the log is refused', async () => {
      const { world, granting } = await grantWith((bytes, from) => {
        bytes[from + 40] = (bytes[from + 40] ?? 0) ^ 1;
        return bytes;
      });
      expect(await codeOf(granting)).toBe('log-outcome-unknown');
      expect(await codeOf(world.controller('a').grant('three'))).toBe('log-corrupt');
    });

    test('and has written more: the next epoch goes on from the record', async () => {
      const { world, granting } = await grantWith((bytes) => Buffer.concat([bytes, Buffer.alloc(100)]));
      expect(await granting).toMatchObject({ result: 2, position: { epoch: 2 } });
      expect(await world.findBroken()).toEqual([]);
    });
  });

  test('that goes on failing: the outcome is unknown, and the next commit begins with the next epoch', async () => {
    const { world, owner } = await withGrants('one');
    owner.process.plan = ({ call, path }) =>
      call === 'append' && path.startsWith('/log') ? { kind: 'fail', errno: 'ENOSPC' } : GO;
    expect(await codeOf(owner.grant('two'))).toBe('log-outcome-unknown');
    owner.process.plan = () => GO;
    const committed = await owner.grant('three');
    expect(committed).toMatchObject({ result: 2, position: { epoch: 2 } });
    expect(await world.findBroken()).toEqual([]);
  });

  test('that answers a link with an error although it was made: the token inside decides', async () => {
    const { world } = await withGrants('one');
    const taker = world.controller('b', onLog('link', { kind: 'failAfter', errno: 'EEXIST' }));
    expect((await taker.log.takeover()).epoch).toBe(2);
    expect((await taker.grant('two')).result).toBe(2);
  });

  test('without hard links is refused', async () => {
    const { world } = await withGrants('one');
    const taker = world.controller('b', onLog('link', { kind: 'fail', errno: 'EOPNOTSUPP' }));
    expect(await codeOf(taker.log.takeover())).toBe('storage-unfit');
    expect(world.disk.pathsBelow('/log')).toEqual([world.epochPath(1)]);
  });

  test('so slow that the log is held beyond its time: the next epoch decides', async () => {
    const { world, owner } = await withGrants('one');
    let isFirst = true;
    owner.process.plan = ({ call, path }) => {
      if (call === 'append' && path === world.epochPath(1) && isFirst) {
        isFirst = false;
        world.pass(5000);
      }
      return GO;
    };
    const committed = await owner.grant('two');
    expect(committed).toMatchObject({ result: 2, position: { epoch: 2 } });
    expect(committed.notices).toMatchObject([
      { kind: 'epoch-taken', reason: 'the log was held for too long' },
    ]);
  });

  test('of which the memory cannot be written: the record counts, and someone is told', async () => {
    const { world, owner } = await withGrants('one');
    owner.process.plan = ({ path }) => (path.startsWith('/var') ? { kind: 'fail', errno: 'EROFS' } : GO);
    const committed = await owner.grant('two');
    expect(committed.notices).toEqual([
      { kind: 'not-remembered', path: '/var/a/seen.json', reason: 'EROFS' },
    ]);
    owner.process.plan = () => GO;
    expect((await owner.grant('three')).notices).toEqual([]);
    expect((await world.replay()).get(2)?.by).toBe('two');
  });

  test('that the header does not name is refused', async () => {
    const { world } = await withGrants('one');
    const header = { epoch: 2, token: '1'.repeat(32), wallMs: 1, cluster: 'c', instance: 'main', host: 'b' };
    const text = encodeHeader({ ...header, storage: 'a text that is no JSON' });
    const first = encodeFrame(TYPE.header, text, FILE_START);
    const base = { baseEpoch: 1, baseSequence: 2, baseChain: 0, items: 0, wallMs: 1 };
    const complete = encodeFrame(TYPE.complete, encodeComplete(base), first.next);
    world.disk.put(world.epochPath(2), Buffer.concat([first.bytes, complete.bytes]));
    expect(await refusalOf(world.controller('b').log.read())).toMatchObject({
      code: 'storage-unfit',
      message: expect.stringMatching(/does not name/),
    });
  });

  test('that lies elsewhere than when the log was written is refused', async () => {
    const { world } = await withGrants('one');
    const bytes = world.disk.bytesOf(world.epochPath(1));
    world.storageType = 'nfs4';
    expect(await codeOf(world.controller('a').grant('two'))).toBe('storage-unfit');
    expect(await codeOf(world.controller('b').log.read())).toBe('storage-unfit');
    expect(world.disk.bytesOf(world.epochPath(1))).toEqual(bytes);
  });
});

describe('taking over', () => {
  test('keeps every grant, fences the owner before, and leaves its file as it was', async () => {
    const { world, owner } = await withGrants('one', 'two');
    const before = world.disk.bytesOf(world.epochPath(1));
    expect(await world.controller('b').log.takeover()).toMatchObject({ epoch: 2, host: 'b', notices: [] });
    expect(await refusalOf(owner.grant('three'))).toMatchObject({
      code: 'log-fenced',
      facts: { detail: { owner: 'b' } },
    });
    expect((await world.controller('b').grant('three')).result).toBe(3);
    expect(world.disk.bytesOf(world.epochPath(1))).toEqual(before);
  });

  test('of an epoch that was never completed goes on from the one below it', async () => {
    const { world } = await withGrants('one');
    const dying = world.controller('b', onLog('append', { kind: 'kill' }));
    await dying.log.takeover().catch(() => undefined);
    expect(world.disk.pathsBelow('/log')).toContain(world.epochPath(2));
    expect((await world.controller('r').log.read()).epoch).toBe(1);
    expect(await codeOf(world.controller('a').grant('two'))).toBe('log-fenced');
    expect((await world.controller('a').log.takeover()).epoch).toBe(3);
    expect((await world.controller('a').grant('two')).result).toBe(2);
  });

  test('compact is for the owner alone', async () => {
    const { world, owner } = await withGrants('one');
    expect(await codeOf(world.controller('b').log.compact())).toBe('log-fenced');
    expect((await owner.log.compact()).epoch).toBe(2);
    expect((await owner.grant('two')).position.epoch).toBe(2);
  });

  test('removes what interrupted takes have prepared', async () => {
    const { world } = await withGrants('one');
    await world
      .controller('b', onLog('link', { kind: 'kill' }))
      .log.takeover()
      .catch(() => undefined);
    expect(world.disk.pathsBelow('/log')).toHaveLength(2);
    await world.controller('b').log.takeover();
    await world.controller('b').log.takeover();
    expect(world.disk.pathsBelow('/log')).toEqual([1, 2, 3].map((epoch) => world.epochPath(epoch)));
  });
});

describe('one log object', () => {
  test('reads only what is new, however often it commits', async () => {
    const { world, owner } = await withGrants('one');
    await owner.grant('two');
    const readBytes = async (): Promise<number> => {
      const from = owner.process.steps.length;
      await owner.grant(`${from}`);
      return owner.process.steps
        .slice(from)
        .filter(({ call, path }) => call === 'read' && path === world.epochPath(1)).length;
    };
    const first = await readBytes();
    for (let i = 0; i < 20; i++) await owner.grant(`more ${i}`);
    expect(await readBytes()).toBe(first);
    expect(first).toBeLessThanOrEqual(3);
  });

  test('sees what other processes of the host have written', async () => {
    const { world, owner } = await withGrants('one');
    await world.controller('a').grant('two');
    expect((await owner.grant('three')).result).toBe(3);
    await world.controller('a').log.compact();
    expect((await owner.grant('four')).result).toBe(4);
  });

  test('opens the file anew when the name stands for another one', async () => {
    const { world, owner } = await withGrants('one');
    const bytes = world.disk.bytesOf(world.epochPath(1)) ?? Buffer.alloc(0);
    world.disk.put(world.epochPath(1), bytes);
    await owner.grant('two');
    expect((await world.replay()).get(2)?.by).toBe('two');
  });

  describe('keeps the token file open between commits,', () => {
    const TOKEN = '/run/a/epoch-1.token';
    /** What is asked of the token file meanwhile. */
    const callsOf = async (
      { log, process }: Controller,
      run: () => Promise<unknown>,
    ): Promise<readonly Step['call'][]> => {
      // what goes on behind a commit is over when the next has its turn
      const turnOf = (): Promise<boolean> => log.owns({ epoch: 99, token: '' });
      await turnOf();
      const from = process.steps.length;
      await run();
      await turnOf();
      return process.steps
        .slice(from)
        .filter(({ path }) => path === TOKEN)
        .map(({ call }) => call);
    };

    test('and gives its lock back after each', async () => {
      const { world, owner } = await withGrants('one');
      expect(await callsOf(owner, () => owner.grant('two'))).toEqual([
        'tryLock',
        'read',
        'overwrite',
        'overwrite',
        'unlock',
      ]);
      const other = world.controller('a', () => GO, { lockTimeoutMs: 0 });
      await other.grant('three');
      expect((await owner.grant('four')).result).toBe(4);
    });

    test('and closes it where the lock cannot be given back', async () => {
      const { world, owner } = await withGrants('one');
      owner.process.plan = ({ call, path }) =>
        call === 'unlock' && path === TOKEN ? { kind: 'fail', errno: 'EIO' } : GO;
      expect(await callsOf(owner, () => owner.grant('two'))).toEqual([
        'open',
        'facts',
        'tryLock',
        'read',
        'overwrite',
        'overwrite',
        'unlock',
        'close',
      ]);
      await world.controller('a', () => GO, { lockTimeoutMs: 0 }).grant('three');
      expect((await owner.grant('four')).result).toBe(4);
    });

    test('but not beyond the epoch', async () => {
      const { world, owner } = await withGrants('one');
      await world.controller('a').log.compact();
      expect(await callsOf(owner, () => owner.grant('two'))).toEqual(['tryLock', 'read', 'close', 'unlink']);
    });

    test('and closes it with the log', async () => {
      const { owner } = await withGrants('one');
      const from = owner.process.steps.length;
      await owner.log.close();
      const after = owner.process.steps.slice(from).filter(({ path }) => path === TOKEN);
      expect(after.map(({ call }) => call)).toEqual(['unlock', 'close']);
    });

    test('and leaves it free for others although it commits on and on', async () => {
      const { world, owner } = await withGrants('one');
      const other = world.controller('a').grant('other');
      const grants = 200;
      owner.process.plan = ({ call }) => {
        if (call === 'append') world.pass(10);
        return GO;
      };
      for (let n = 0; n < grants; n += 1) await owner.grant(`mine ${n}`);
      expect((await other).result).toBeLessThan(grants / 2);
    });

    test('and finds an unfinished commit of another process of the host', async () => {
      const { world, owner } = await withGrants('one');
      const killed = world.controller('a', onLog('append', { kind: 'killHalf' }));
      await killed.grant('half').catch(() => undefined);
      const { result, position } = await owner.grant('two');
      expect([result, position.epoch]).toEqual([2, 2]);
    });
  });

  test('is of no use once it is closed', async () => {
    const { owner } = await withGrants('one');
    await owner.log.close();
    expect(await codeOf(owner.grant('two'))).toBe('bug');
    expect(await codeOf(owner.log.read())).toBe('bug');
  });
});

test('a machine that must not see its bytes again gets events as they will be replayed', async () => {
  const world = new World();
  const seen: string[] = [];
  const decode = (bytes: Uint8Array, start?: number, end?: number): string =>
    Buffer.from(bytes).toString('utf8', start, end);
  const machine: Machine<string[], string> = {
    empty: () => [],
    replay: (state, bytes, start, end) => {
      const event = decode(bytes, start, end);
      seen.push(event);
      state.push(event);
    },
    encode: (event) => Buffer.from(event.toUpperCase()),
    decode,
    snapshot: (state) => state.map((item) => Buffer.from(item)),
    restore: (state, record) => {
      state.push(Buffer.from(record).toString());
    },
  };
  const log = new EpochLog(world.portsOf('a'), world.optionsOf('a'), machine);
  await log.init();
  await log.commit(() => ({ events: ['quiet'], result: null }));
  expect(seen).toEqual(['QUIET']);
  expect((await log.read()).state).toEqual(['QUIET']);
});

test('decideGrant gives the lowest free uid', () => {
  expect(decideGrant(new Map([[1, { by: 'x', isWhole: true }]]), 'y').result).toBe(2);
});

describe('on storage that lets no writer in', () => {
  test('reads go on, and nobody commits, takes an epoch or makes a log', async () => {
    const { world, owner } = await withGrants('one');
    await owner.log.close();
    const before = world.disk.copyOf('/log');
    const refuse = async (): Promise<never> => {
      throw new XceError('storage-unfit', 'this host has not probed it');
    };
    const ports = world.portsOf('a');
    const storage = { look: ports.storage.look, admit: refuse, probe: refuse };
    const log = new EpochLog({ ...ports, storage }, world.optionsOf('a'), grantMachine);
    expect((await log.read()).state).toEqual((await world.controller('b').log.read()).state);
    expect(await codeOf(log.commit((state) => decideGrant(state, 'two')))).toBe('storage-unfit');
    expect(await codeOf(log.takeover())).toBe('storage-unfit');
    expect(await codeOf(log.compact())).toBe('storage-unfit');
    expect(world.disk.copyOf('/log')).toEqual(before);
    for (const path of before.keys()) world.disk.remove(path);
    const other = new EpochLog({ ...world.portsOf('c'), storage }, world.optionsOf('c'), grantMachine);
    expect(await codeOf(other.init())).toBe('storage-unfit');
    expect(world.disk.pathsBelow('/log')).toEqual([]);
  });
});

test('storage that lets in no more is asked whenever a process opens its log, or takes an epoch', async () => {
  const { world } = await withGrants('one');
  const ports = world.portsOf('a');
  let isFit = true;
  const admit: typeof ports.storage.admit = async (directory) => {
    if (isFit) return await ports.storage.admit(directory);
    throw new XceError('storage-unfit', 'it is not mounted as it was when this host probed it');
  };
  const log = new EpochLog(
    { ...ports, storage: { ...ports.storage, admit } },
    world.optionsOf('a'),
    grantMachine,
  );
  await log.commit((state) => decideGrant(state, 'two'));
  isFit = false;
  expect(await codeOf(log.takeover())).toBe('storage-unfit');
  expect(await codeOf(log.commit((state) => decideGrant(state, 'three')))).toBe('storage-unfit');
  isFit = true;
  await log.commit((state) => decideGrant(state, 'three'));
});

test('who takes an epoch removes what probes left that were killed long ago', async () => {
  const { world, owner } = await withGrants('one');
  const left = '/log/.xce-probe-00000000000000aa.tail.a';
  world.disk.put(left, Buffer.from('x'));
  world.pass(LIMITS.probeMsMax);
  await owner.log.takeover();
  expect(world.disk.bytesOf(left)).toBeDefined();
  world.pass(60_000);
  await owner.log.takeover();
  expect(world.disk.bytesOf(left)).toBeUndefined();
});
