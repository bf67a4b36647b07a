/**
 * Handing a tree over, walks and proof, beside what operators would type. Owners alternate, so that every run changes
 * every inode. None of the peers proves anything, and a link that is put in their way leads each of them astray.
 */
import { execFileSync } from 'node:child_process';
import { chmodSync, chownSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { countOf } from '../../src/base/count.ts';
import { bundleProgram } from '../support/bundle.ts';
import { interleave, measureOnce, onHost, type Usage } from './measure.ts';
import { type Goal, makeRow, type Row } from './rows.ts';

const JOB = 70_000;
const SUBMITTER = 21_001;
/** Root's own directory on the machine's disk: a walk wants parents that nobody else may change. */
const PARENT = '/srv';
const ROUNDS = 3;
/** Against peers without a goal. */
const FEW_ROUNDS = 1;

type Report = (line: string) => void;

type Tree = {
  readonly name: string;
  readonly make: (root: string) => void;
  readonly goal: Goal | null;
  readonly peers: readonly Peer[];
};

type Peer = { readonly name: string; readonly argv: (root: string) => readonly string[] };

const OWNER = `${SUBMITTER}:${SUBMITTER}`;
const FROM = `${JOB}:${JOB}`;

const CHOWN: Peer = {
  name: 'chown -R -h --from',
  argv: (root) => ['/usr/bin/chown', '-R', '-h', `--from=${FROM}`, OWNER, root],
};
const FIND: readonly Peer[] = [
  {
    name: 'find -exec chown -h +',
    argv: (root) => [
      '/usr/bin/find',
      root,
      '-uid',
      String(JOB),
      '-exec',
      '/usr/bin/chown',
      '-h',
      OWNER,
      '{}',
      '+',
    ],
  },
  {
    name: 'find | xargs -P2 chown -h',
    argv: (root) => [
      ...[
        '/bin/sh',
        '-c',
        '/usr/bin/find "$1" -uid "$2" -print0 | /usr/bin/xargs -0 -n 500 -P 2 /usr/bin/chown -h "$3"',
      ],
      ...['sh', root, String(JOB), OWNER],
    ],
  },
];

const files = (directory: string, count: number): void => {
  for (let index = 0; index < count; index += 1) writeFileSync(join(directory, `f${index}`), '');
};

const directories = (root: string, count: number, filesInEach: number): void => {
  for (let index = 0; index < count; index += 1) {
    const directory = join(root, `d${index}`);
    mkdirSync(directory);
    files(directory, filesInEach);
  }
};

const TREES: readonly Tree[] = [
  {
    name: '300,000 files in 3,000 directories',
    make: (root) => directories(root, 3000, 100),
    goal: { ratioAtMost: 0.7 },
    peers: [CHOWN, ...FIND],
  },
  {
    name: '200,000 files in one directory',
    make: (root) => files(root, 200_000),
    goal: { ratioAtMost: 1.2 },
    peers: [CHOWN],
  },
  {
    name: '2,000 levels',
    make: (root) => {
      // A path may have 4,096 bytes: "d/" is two of them.
      mkdirSync(join(root, ...Array.from({ length: 2000 }, () => 'd')), { recursive: true });
    },
    goal: { ratioAtMost: 1.2 },
    peers: [CHOWN],
  },
];

/** The goals are for the first. */
const NUMBERS = [
  { unit: 'ms wall beyond start-up', of: ({ wallMs }: Usage) => wallMs },
  { unit: 'ms CPU beyond start-up', of: ({ cpuMs }: Usage) => cpuMs },
] as const;

const giveTo = (owner: string, root: string): void => {
  execFileSync('/usr/bin/chown', ['-R', '-h', owner, root]);
};

class Bench {
  readonly #directory = mkdtempSync(join(PARENT, 'xce-bench-'));
  readonly #report: Report;

  constructor(report: Report) {
    this.#report = report;
    chmodSync(this.#directory, 0o711);
  }

  async run(): Promise<readonly Row[]> {
    const program = await bundleProgram(new URL('./normalise-program.ts', import.meta.url), this.#directory);
    const start = await measureOnce(onHost, ['/usr/bin/node', '-e', '0']);
    const rows: Row[] = [];
    for (const [index, tree] of TREES.entries()) {
      const root = join(this.#directory, String(index));
      mkdirSync(root, { mode: 0o700 });
      this.#report(`make ${tree.name}`);
      tree.make(root);
      chownSync(root, JOB, JOB);
      const subject = ['/usr/bin/node', program, root, String(JOB), String(SUBMITTER)];
      for (const peer of tree.peers) rows.push(...(await this.#compare(tree, root, subject, peer, start)));
      rmSync(root, { recursive: true });
    }
    rows.push(await this.#memory(program));
    return rows;
  }

  async #compare(
    tree: Tree,
    root: string,
    subject: readonly string[],
    peer: Peer,
    start: Usage,
  ): Promise<readonly Row[]> {
    const isGoal = peer === CHOWN;
    const rounds = isGoal ? ROUNDS : FEW_ROUNDS;
    this.#report(`${tree.name}, beside ${peer.name}: ${countOf(rounds, 'round')}`);
    const measure = async (argv: readonly string[]): Promise<Usage> => {
      giveTo(FROM, root);
      return await measureOnce(onHost, argv);
    };
    const runs = await interleave(
      rounds,
      () => measure(subject),
      () => measure(peer.argv(root)),
    );
    return NUMBERS.map(({ unit, of }, index) =>
      makeRow({
        name: `hand over ${tree.name}`,
        unit,
        values: runs.subject.map((usage) => of(usage) - of(start)),
        peer: peer.name,
        peerValues: runs.peer.map(of),
        goal: isGoal && index === 0 ? tree.goal : null,
      }),
    );
  }

  async #memory(program: string): Promise<Row> {
    const root = join(this.#directory, 'million');
    mkdirSync(root, { mode: 0o700 });
    this.#report('make 1,000,000 files');
    directories(root, 1000, 1000);
    giveTo(FROM, root);
    const usage = await measureOnce(onHost, ['/usr/bin/node', program, root, String(JOB), String(SUBMITTER)]);
    giveTo(FROM, root);
    const peer = await measureOnce(onHost, CHOWN.argv(root));
    return makeRow({
      name: 'hand over 1,000,000 files',
      unit: 'MiB peak',
      values: [usage.peakMiB],
      peer: CHOWN.name,
      peerValues: [peer.peakMiB],
      goal: { valueAtMost: 150 / 1.048576 },
    });
  }

  end(): void {
    rmSync(this.#directory, { recursive: true, force: true });
  }
}

export const benchNormalise = async (report: Report): Promise<readonly Row[]> => {
  const bench = new Bench(report);
  try {
    return await bench.run();
  } finally {
    bench.end();
  }
};
