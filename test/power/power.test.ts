/**
 * The power fails under a lease log: the file system is shut down by the ioctl that xfstests uses (ext4 and xfs know
 * it), so that what was not made durable is gone, and is mounted again.
 */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { localPlace, openRealLog, type RealPlace } from '../crash/real-log.ts';
import { findMissing, type RealRun, startController } from '../crash/real-run.ts';
import { decideGrant } from '../crash/world.ts';
import { mustRun, run } from '../support/cluster/process.ts';

const IMAGE_BYTES = '400M';
/** EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN are one number. */
const SHUTDOWN = 0x8004587d;
const FLAGS = { 'all is flushed first': 0, 'not even the journal is flushed': 2 } as const;
const SHUT_DOWN =
  'open(my $top, "<", $ARGV[0]) or die $!; ioctl($top, $ARGV[1], pack("L", $ARGV[2])) or die $!';

let root = '';
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'xce-power-'));
});
afterEach(async () => {
  // Nothing is mounted there when a test has ended well.
  await run(['umount', join(root, 'disk')]);
  rmSync(root, { recursive: true, force: true });
});

class Disk {
  readonly top: string;
  readonly #image: string;

  constructor(directory: string) {
    this.top = join(directory, 'disk');
    this.#image = join(directory, 'image');
    mkdirSync(this.top);
  }

  async make(type: 'ext4' | 'xfs'): Promise<void> {
    await mustRun(['truncate', '-s', IMAGE_BYTES, this.#image]);
    await mustRun([`mkfs.${type}`, '-q', this.#image], { timeoutMs: 60_000 });
    await this.mount();
  }

  async mount(): Promise<void> {
    await mustRun(['mount', '-o', 'loop', this.#image, this.top]);
  }

  async failPower(flags: number): Promise<void> {
    await mustRun(['perl', '-e', SHUT_DOWN, this.top, String(SHUTDOWN), String(flags)]);
  }

  async unmount(): Promise<void> {
    await mustRun(['umount', this.top]);
  }
}

/** After how many grants the power fails, and who loses it. */
const MOMENTS = [
  { grants: 1, hostToo: true },
  { grants: 4, hostToo: false },
  { grants: 9, hostToo: true },
  { grants: 17, hostToo: false },
] as const;

type Case = readonly [
  type: 'ext4' | 'xfs',
  how: keyof typeof FLAGS,
  memory: 'beside the log' | 'on another disk',
];
const CASES: readonly Case[] = (['ext4', 'xfs'] as const).flatMap((type) =>
  (Object.keys(FLAGS) as (keyof typeof FLAGS)[]).flatMap((how) =>
    (['beside the log', 'on another disk'] as const).map((memory): Case => [type, how, memory]),
  ),
);

describe('when the power of the storage fails again and again under two writers', () => {
  test.each(CASES)(
    '%s, %s, what the host remembers %s: no acknowledged record is missing',
    async (type, how, memory) => {
      const disk = new Disk(root);
      await disk.make(type);
      mkdirSync(join(disk.top, 'log'));
      const place: RealPlace = {
        ...localPlace(root, 'a'),
        directory: join(disk.top, 'log'),
        memoryPath: join(memory === 'beside the log' ? disk.top : root, 'memory/seen.json'),
      };
      const reader = { ...localPlace(root, 'reader'), directory: place.directory };
      const first = openRealLog(place);
      await first.init();
      await first.close();

      const runs: RealRun[] = [];
      for (const [round, { grants, hostToo }] of MOMENTS.entries()) {
        const pair = ['p', 'q'].map((name) => startController(place, `${name}${round}`, 10_000));
        runs.push(...pair);
        await Promise.all(pair.map((run) => run.granted(grants)));
        await disk.failPower(FLAGS[how]);
        // They see it at their next call; nobody is to be told of success any more.
        const ends = await Promise.all(pair.map(({ ended }) => ended));
        for (const end of ends) expect(end).toMatch(/^(log-io|log-outcome-unknown|log-fenced)$/);
        await disk.unmount();
        await disk.mount();
        if (hostToo) rmSync(place.runDirectory, { recursive: true });

        const fresh = openRealLog(reader);
        expect(findMissing((await fresh.read()).state, runs)).toEqual([]);
        await fresh.close();
        rmSync(reader.memoryPath);

        const next = openRealLog(place);
        const grant = () => next.commit((state) => decideGrant(state, `after ${round}`));
        if (hostToo) {
          await expect(grant()).rejects.toMatchObject({ code: 'log-fenced' });
          await next.takeover();
        }
        await grant();
        const { state } = await next.read();
        await next.close();
        expect(findMissing(state, runs)).toEqual([]);
        expect([...state.values()].every(({ isWhole }) => isWhole)).toBe(true);
      }
      await disk.unmount();
    },
  );

  test('the shutdown really loses what was not fsynced', async () => {
    const disk = new Disk(root);
    await disk.make('ext4');
    await mustRun([
      'sh',
      '-c',
      `echo kept > ${disk.top}/kept; sync ${disk.top}/kept ${disk.top}; echo lost > ${disk.top}/lost`,
    ]);
    await disk.failPower(FLAGS['not even the journal is flushed']);
    await disk.unmount();
    await disk.mount();
    const { stdout } = await mustRun(['ls', disk.top]);
    expect(stdout.toString('utf8').split('\n')).toContain('kept');
    expect(stdout.toString('utf8')).not.toMatch(/^lost$/m);
    await disk.unmount();
  });
});
