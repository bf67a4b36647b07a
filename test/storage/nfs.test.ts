import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { Writer } from '../support/storage/gluster-site.ts';
import { NfsLab } from '../support/storage/nfs.ts';
import {
  type Content,
  furnishPlaces,
  LogOnNfs,
  lookFromTwoClients,
  type Place,
} from '../support/storage/nfs-site.ts';

/** Mounted as an administrator does who knows nothing of leases. */
const DEFAULT: readonly Place[] = [
  { name: 'v42', version: '4.2', options: [] },
  { name: 'v3', version: '3', options: [] },
];
/** Other options than those of a mount of the same host and server, so another superblock. */
const APART = 'nosharecache';
const UNFIT: readonly (Place & { readonly because: RegExp })[] = [
  { name: 'nolock', version: '3', options: ['nolock', APART], because: /mounted with nolock/ },
  {
    name: 'locallock',
    version: '3',
    options: ['local_lock=posix', APART],
    because: /mounted with local_lock=posix/,
  },
];
const SQUASHED: Place = { name: 'squashed', version: '4.2', options: [] };

type Row = {
  readonly scenario: string;
  readonly version: string;
  readonly acked: number;
  readonly inLog: number;
  readonly missing: number;
  readonly seconds: number;
};
const rows: Row[] = [];
const notes: string[] = [];

let lab: NfsLab;
let logs: readonly LogOnNfs[] = [];
let writers: readonly Writer[] = [];

beforeAll(async () => {
  lab = await NfsLab.start(furnishPlaces([...DEFAULT, ...UNFIT, SQUASHED]));
});

afterAll(async () => {
  await lab?.down();
  const head = ['scenario', 'version', 'acked', 'in log', 'missing', 'seconds'];
  const table = rows.map((row) => [
    row.scenario,
    ...[row.version, row.acked, row.inLog, row.missing, row.seconds].map(String),
  ]);
  const text = [head, ...table]
    .map(([name = '', ...cells]) => name.padEnd(52) + cells.map((cell) => cell.padStart(9)).join(''))
    .join('\n');
  process.stdout.write(`${[text, ...notes].join('\n')}\n`);
});

const startWriters = async (host: 'c1' | 'c2'): Promise<void> => {
  writers = await Promise.all(logs.map((log) => log.startWriter(host)));
};

const allMore = async (wanted: number, timeoutMs = 90_000): Promise<void> => {
  await Promise.all(writers.map((writer) => writer.more(wanted, timeoutMs)));
};

/** Every byte checks, and what was acknowledged to anyone up to now is there. */
const expectKept = async (
  scenario: string,
  startedMs: number,
  contentOf: (log: LogOnNfs) => Promise<Content>,
): Promise<void> => {
  for (const log of logs) {
    // Writers may go on meanwhile.
    const acknowledged = new Map(log.acknowledged);
    const content = await contentOf(log);
    const missing = log.missingFrom(content, acknowledged);
    const seconds = Math.round((performance.now() - startedMs) / 100) / 10;
    rows.push({
      scenario,
      version: log.place.version,
      acked: acknowledged.size,
      inLog: content.leases.size,
      missing: missing.length,
      seconds,
    });
    expect(content.problems).toEqual([]);
    expect(missing).toEqual([]);
    expect(acknowledged.size).toBeGreaterThan(0);
  }
};

/** The jobs that writers of a host have a lease for. */
const jobsOf = ({ leases }: Content, host: string): readonly string[] =>
  [...leases.keys()].filter((job) => job.startsWith(`${host}-`)).sort();

describe('lease init', () => {
  test.each(UNFIT)('refuses a mount with $name, and writes nothing', async ({ because, ...place }) => {
    const log = await LogOnNfs.prepare(lab, place, ['c1']);
    const end = await log.run('c1', 'lease', 'init');
    expect(end).toMatchObject({ status: 78, stdout: '' });
    expect(end.stderr).toMatch(because);
    expect(await log.names()).toEqual([]);
  });

  test('is refused by a server that takes root for nobody, and writes nothing', async () => {
    const log = await LogOnNfs.prepare(lab, SQUASHED, ['c3', 'c2']);
    const { init, listen } = await log.initWithPeer('c3', 'c2');
    expect(init).toMatchObject({ status: 78, stdout: '' });
    expect(init.stderr).toMatch(/EACCES|EPERM/);
    expect(listen).toMatchObject({ status: 78, stdout: '' });
    expect(await log.names()).toEqual([]);
  });

  test('makes a log on version 4.2 and on version 3 with default options, once two clients have probed it', {
    timeout: 3_000_000,
  }, async () => {
    logs = await Promise.all(DEFAULT.map((place) => LogOnNfs.prepare(lab, place, ['c1', 'c2'])));
    for (const log of logs) {
      const startedMs = performance.now();
      const ends = await log.initWithPeer('c1', 'c2');
      expect(ends).toMatchObject({ init: { status: 0 }, listen: { status: 0 } });
      expect(await log.names()).toEqual(['leases.wal.1']);
      const seconds = Math.round((performance.now() - startedMs) / 1000);
      notes.push(`version ${log.place.version}: probed by two clients, and made, in ${seconds} s`);
    }
  });
});

describe('two clients', () => {
  const ROUNDS = 100;

  test.each(DEFAULT.map(({ version }) => version))(
    'see the next epoch as soon as it is settled, on version %s',
    async (version) => {
      const { before, after } = await lookFromTwoClients(lab, version, ROUNDS);
      notes.push(
        `version ${version}: of ${ROUNDS} looks ${before} missed a link at once, ${after} when settled`,
      );
      expect(after).toBe(0);
    },
  );
});

describe('on version 4.2 and version 3 at the same time', () => {
  test('a writer that is killed loses nothing, and the next one of its host goes on', async () => {
    const startedMs = performance.now();
    await startWriters('c1');
    await allMore(5);
    await Promise.all(writers.map((writer) => writer.killed()));
    await startWriters('c1');
    await allMore(3);
    await expectKept('writer killed', startedMs, (log) => log.contentAt('c2'));
  });

  test('a server that is gone for a while, with all locks, loses nothing', async () => {
    const startedMs = performance.now();
    await allMore(1);
    await lab.stopServer();
    await lab.startServer();
    await allMore(3);
    await expectKept('server stopped and started', startedMs, (log) => log.contentAt('c2'));
  });

  test('an owner that is cut off is fenced once it is back, and what it wrote late does not count', async () => {
    const startedMs = performance.now();
    const cutOff = writers;
    await allMore(1);
    await lab.host('c1').cut();
    for (const log of logs) await log.must('c2', 'lease', 'takeover');
    await startWriters('c2');
    await allMore(3);
    const before = await Promise.all(logs.map(async (log) => jobsOf(await log.contentAt('c2'), 'c1')));
    await lab.host('c1').join();
    const ends = await Promise.all(cutOff.map((writer) => writer.ended));
    for (const end of ends) expect(end).toMatch(/^log-(fenced|outcome-unknown)$/);
    await allMore(3);
    const after = await Promise.all(logs.map(async (log) => jobsOf(await log.contentAt('c2'), 'c1')));
    expect(after).toEqual(before);
    await expectKept('owner cut off, another took over', startedMs, (log) => log.contentAt('c2'));
  });

  test('the power failure of the server and of everyone loses nothing', async () => {
    const startedMs = performance.now();
    await allMore(1);
    const disk = await lab.killAndMount();
    expect(await Promise.all(writers.map((writer) => writer.ended))).toEqual(['killed', 'killed']);
    await expectKept('power failure of the server', startedMs, (log) =>
      log.contentOf(join(disk, `log-${log.place.name}`)),
    );
  });
});
