/** What the probe makes of storage that breaks one promise between two hosts, in one round of many. */
import { describe, expect, test } from 'vitest';
import { XceError } from '../../../src/base/errors.ts';
import type { LogFile, LogFiles } from '../../../src/os/log-files.ts';
import type { ProbeParty } from '../../../src/wal/probe-action.ts';
import { LocalParty, ProbeHand } from '../../../src/wal/probe-hand.ts';
import { probeTwoHosts } from '../../../src/wal/probe-script.ts';
import { NameCache, SimulatedDisk } from '../../crash/simulated-disk.ts';

const ID = '0123456789abcdef';
/** A thousand rounds take their time where the machine has other work. */
const SLOW = { timeout: 120_000 };

/** A host over the disk, as a client that sees it through `distort`. */
const hostOn = (disk: SimulatedDisk, node: string, distort = (files: LogFiles) => files): LocalParty => {
  const cache = new NameCache();
  const wait = async (milliseconds: number): Promise<void> => {
    disk.nowMs += milliseconds;
    await new Promise<void>((resolve) => setImmediate(resolve));
  };
  const handOn = (files: LogFiles) => new ProbeHand({ files: distort(files), wait }, '/log', ID);
  return new LocalParty(node, handOn(disk.process(undefined, cache).files), async () => {
    const process = disk.process(undefined, cache);
    const hand = handOn(process.files);
    return { perform: (actions) => hand.perform(actions), kill: async () => process.kill() };
  });
};

const probeWith = async (
  distortHere?: (files: LogFiles) => LogFiles,
  distortThere?: (files: LogFiles) => LogFiles,
  change = (there: ProbeParty): ProbeParty => there,
) => {
  const disk = new SimulatedDisk();
  disk.addDirectory('/log');
  const told: string[] = [];
  const here = hostOn(disk, 'ctl1', distortHere);
  const there = hostOn(disk, 'ctl2', distortThere);
  const kept = await probeTwoHosts(here, change(there), (text) => told.push(text));
  return { kept, told };
};

const refusalOf = async (probe: Promise<unknown>): Promise<XceError> => {
  const error = await probe.catch((reason: unknown) => reason);
  if (error instanceof XceError) return error;
  throw new Error(`it was not refused: ${JSON.stringify(error)}`);
};

/** Every descriptor changed in the same way; `path` tells which file it is of. */
const withFiles =
  (change: (file: LogFile, path: string) => Partial<LogFile>) =>
  (files: LogFiles): LogFiles => ({
    ...files,
    open: async (path, purpose) => {
      const file = await files.open(path, purpose);
      return { ...file, ...change(file, path) };
    },
  });

/** Does not show one name for as long as it is there. */
const blindTo = (name: string, { inListing = true, byName = true }) => {
  return (files: LogFiles): LogFiles => ({
    ...files,
    list: async (directory) => {
      const names = await files.list(directory);
      return inListing ? names.filter((each) => !each.endsWith(`.${name}`)) : names;
    },
    open: (path, purpose) => {
      if (byName && purpose === 'read' && path.endsWith(`.${name}`)) {
        return Promise.reject(Object.assign(new Error('ENOENT'), { code: 'ENOENT' }));
      }
      return files.open(path, purpose);
    },
  });
};

test('storage that keeps its promises passes, and the operator hears how far it is', SLOW, async () => {
  const { kept, told } = await probeWith();
  expect(kept).toContain('look');
  expect(kept).toHaveLength(13);
  expect(told.filter((line) => line.startsWith('look and fresh read'))).toHaveLength(10);
});

describe('one stale round is refused, whoever has it:', SLOW, () => {
  const STALE = blindTo('look.388.a', {});

  test('a name that was made and does not show', async () => {
    const refusal = await refusalOf(probeWith(undefined, STALE));
    expect(refusal.code).toBe('storage-unfit');
    expect(refusal.message).toBe('look and fresh read, round 776: ctl2 does not see what ctl1 has made');
    expect(refusal.facts.detail).toMatchObject({ round: 776 });
  });

  test('the same at the host that asks', async () => {
    const refusal = await refusalOf(probeWith(blindTo('look.500.b', {})));
    expect(refusal.message).toBe('look and fresh read, round 999: ctl1 does not see what ctl2 has made');
  });

  test('a name that a listing shows and that cannot be opened', async () => {
    const refusal = await refusalOf(probeWith(undefined, blindTo('look.5.a', { inListing: false })));
    expect(refusal.message).toBe('look and fresh read, round 10: ctl2 cannot read what ctl1 has made');
  });

  test('a name that only opening shows is seen', async () => {
    await expect(probeWith(undefined, blindTo('look.5.a', { byName: false }))).resolves.toMatchObject({
      kept: expect.arrayContaining(['look']),
    });
  });

  test('a fresh read that ends too early', async () => {
    let reads = 0;
    const short = withFiles((file, path) => ({
      read: async (into, position) => {
        if (!path.endsWith('.tail.a')) return await file.read(into, position);
        reads += 1;
        return reads < 500 ? await file.read(into, position) : 0;
      },
    }));
    const refusal = await refusalOf(probeWith(undefined, short));
    expect(refusal.message).toMatch(/^look and fresh read, round \d+: ctl2 reads 0 of \d+ bytes that ctl1/);
  });

  test('a size that is old although the lock is held', async () => {
    let asked = 0;
    const old = withFiles((file, path) => ({
      facts: async () => {
        const facts = await file.facts();
        if (!path.endsWith('.size')) return facts;
        asked += 1;
        return { ...facts, bytes: asked === 60 ? facts.bytes - 1 : facts.bytes };
      },
    }));
    const refusal = await refusalOf(probeWith(old));
    expect(refusal.message).toMatch(/^size under the lock, round 60: ctl1 reads \d+ of \d+ bytes that ctl2/);
  });

  test('a rename that does not show', async () => {
    const refusal = await refusalOf(probeWith(undefined, blindTo('rename.9.a', {})));
    expect(refusal.message).toBe('rename between hosts, round 9: ctl2 does not see what ctl1 has renamed');
  });

  test('two hosts that are both told that they were first', async () => {
    for (const call of ['create', 'link'] as const) {
      const lax = (files: LogFiles): LogFiles => ({
        ...files,
        open: (path, purpose) =>
          files.open(
            path,
            call === 'create' && purpose === 'create' && path.endsWith('.create.3') ? 'token' : purpose,
          ),
        link: async (from, to) => {
          if (call === 'link' && to.endsWith('.link.3')) return;
          await files.link(from, to);
        },
      });
      const refusal = await refusalOf(probeWith(undefined, lax));
      expect(refusal.message).toBe(`exclusive ${call} between hosts, round 3: both hosts made ${call}.3`);
    }
  });

  test('locks that one host does not know of', async () => {
    const alone = new Map<string, LogFile>();
    const own = withFiles((file, path) => ({
      tryLock: () => {
        const holder = alone.get(path);
        if (holder !== undefined && holder !== file) return false;
        alone.set(path, file);
        return true;
      },
      unlock: () => {
        if (alone.get(path) === file) alone.delete(path);
      },
    }));
    const keepsKilled = (there: ProbeParty): ProbeParty => ({
      node: there.node,
      first: there.first,
      second: {
        perform: there.second.perform,
        kill: async () => {
          alone.clear();
          await there.second.kill();
        },
      },
    });
    const refusal = await refusalOf(probeWith(undefined, own, keepsKilled));
    expect(refusal.message).toBe('locks between hosts: ctl2 got a lock that ctl1 held');
  });
});

test('an error counts as a broken promise, and names it', SLOW, async () => {
  const broken = (files: LogFiles): LogFiles => ({
    ...files,
    link: (from, to) =>
      to.endsWith('.look.12.b')
        ? Promise.reject(Object.assign(new Error('ESTALE'), { code: 'ESTALE' }))
        : files.link(from, to),
  });
  const refusal = await refusalOf(probeWith(undefined, broken));
  expect(refusal.code).toBe('storage-unfit');
  expect(refusal.message).toMatch(/^look and fresh read, round 23: link look\.12\.b\.new: ESTALE$/);
});

test('a host that gives no answer is refused with the code of the transport, in the round it was lost', async () => {
  let asked = 0;
  const refusal = await refusalOf(
    probeWith(undefined, undefined, ({ node, first, second }) => ({
      node,
      second,
      first: {
        perform: async (actions) => {
          asked += 1;
          if (asked > 400) throw new XceError('worker-unreachable', 'the connection was lost');
          return await first.perform(actions);
        },
      },
    })),
  );
  expect(refusal.code).toBe('worker-unreachable');
  expect(refusal.message).toMatch(
    /^exclusive (create|link) between hosts, round \d+: the connection was lost$/,
  );
});

test('two hosts that do not see one directory are told so', async () => {
  const disk = new SimulatedDisk();
  disk.addDirectory('/log');
  const other = new SimulatedDisk();
  other.addDirectory('/log');
  const probe = probeTwoHosts(hostOn(disk, 'ctl1'), hostOn(other, 'ctl2'), () => undefined);
  expect((await refusalOf(probe)).message).toBe(
    'one directory: ctl2 does not see the directory that ctl1 sees',
  );
});
