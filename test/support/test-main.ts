/**
 * `npm test [-- TIER...]`: runs the tiers one after the other, says what it does while it does it, and ends with one
 * line `N passed, N failed`. Lint, types and build count as one test each. Exit status: 0 when everything ran and
 * passed, 1 when something failed, 2 when
 * something could not run here, be it a tier without root or a test without its program (with CI=true that has failed).
 */
import { spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { findUnknown, readArguments } from './arguments.ts';
import { installHostPackages } from './cluster/host.ts';
import { repositoryDirectory } from './cluster/product.ts';
import { settle } from './cluster/scope.ts';
import { VITEST_TIERS, type VitestTier } from './tiers.ts';

type Counts = {
  readonly passed: number;
  readonly failed: number;
  /** Tests that did not run because the machine lacks something. */
  readonly skipped: number;
  readonly note: string;
};
type Tier = {
  readonly name: string;
  readonly needsRoot: boolean;
  readonly run: () => Promise<Counts>;
};

const say = (line: string): void => {
  process.stdout.write(`${line}\n`);
};

/** The tier that runs now is a process group of its own: what we get, it gets, and its forks with it. */
let current: number | undefined;
let interruptedBy: NodeJS.Signals | undefined;

const signalGroup = (pid: number, signal: NodeJS.Signals): void => {
  try {
    process.kill(-pid, signal);
  } catch {
    // the group has ended
  }
};

const END_MS_MAX = 15_000;

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => {
    interruptedBy ??= signal;
    if (current === undefined) return;
    const pid = current;
    signalGroup(pid, signal);
    setTimeout(() => {
      if (current === pid) signalGroup(pid, 'SIGKILL');
    }, END_MS_MAX).unref();
  });
}

/** Runs a program with our output; undefined when the deadline passed. */
const runGroup = (argv: readonly string[], timeoutMs: number): Promise<number | undefined> =>
  new Promise((resolve, reject) => {
    const [file = '', ...rest] = argv;
    const child = spawn(file, rest, {
      cwd: repositoryDirectory,
      stdio: ['ignore', 'inherit', 'inherit'],
      detached: true,
    });
    current = child.pid;
    let late = false;
    const deadline = setTimeout(() => {
      late = true;
      if (child.pid !== undefined) signalGroup(child.pid, 'SIGKILL');
    }, timeoutMs);
    child.once('error', reject);
    child.once('close', (code) => {
      clearTimeout(deadline);
      if (child.pid !== undefined) signalGroup(child.pid, 'SIGKILL'); // what it left running
      current = undefined;
      resolve(late ? undefined : (code ?? 1));
    });
  });

const bin = (name: string): string => join(repositoryDirectory, 'node_modules/.bin', name);

const commandTier = (name: string, argv: readonly string[]): Tier => ({
  name,
  needsRoot: false,
  run: async () => {
    const status = await runGroup(argv, 600_000);
    const passed = status === 0 ? 1 : 0;
    return {
      passed,
      failed: 1 - passed,
      skipped: 0,
      note: status === 0 ? '' : `exit ${status ?? 'by deadline'}`,
    };
  },
});

/** What we read of vitest's JSON report. */
type Report = {
  readonly numPassedTests: number;
  readonly numFailedTests: number;
  readonly numPendingTests: number;
  readonly numTodoTests: number;
  readonly testResults: readonly {
    readonly status: string;
    readonly assertionResults: readonly { status: string }[];
  }[];
};

const readReport = (file: string): Report | undefined =>
  existsSync(file) ? (JSON.parse(readFileSync(file, 'utf8')) as Report) : undefined;

const countReport = (report: Report | undefined, status: number | undefined): Counts => {
  if (report === undefined)
    return { passed: 0, failed: 1, skipped: 0, note: `no report; exit ${status ?? 'by deadline'}` };
  // a file that fails outside of its tests fails none of them
  const brokenFiles = report.testResults.filter(
    (file) => file.status === 'failed' && !file.assertionResults.some((result) => result.status === 'failed'),
  ).length;
  const skipped = report.numPendingTests + report.numTodoTests;
  const counted = report.numFailedTests + brokenFiles;
  const failed = counted === 0 && status !== 0 ? 1 : counted;
  const notes = [
    skipped > 0 ? `${skipped} skipped` : '',
    brokenFiles > 0 ? `${brokenFiles} files broken` : '',
    failed > counted ? `vitest ended with ${status ?? 'the deadline'}` : '',
    report.testResults.length === 0 ? 'no tests' : '',
  ];
  return {
    passed: report.numPassedTests,
    failed,
    skipped,
    note: notes.filter((note) => note !== '').join(', '),
  };
};

const vitestTier = (tier: VitestTier): Tier => ({
  name: tier.name,
  needsRoot: tier.needsRoot,
  run: async () => {
    const directory = mkdtempSync(join(tmpdir(), 'xce-sandbox-report-'));
    try {
      const file = join(directory, 'report.json');
      const config = ['--config', 'test/vitest.config.ts', '--project', tier.name];
      const reporters = ['--reporter=default', '--reporter=json', `--outputFile.json=${file}`];
      const namespace = tier.ownMounts ? ['unshare', '--mount', '--propagation', 'private', '--'] : [];
      const vitest = [...namespace, bin('vitest'), 'run', ...config, ...reporters];
      const status = await runGroup(vitest, tier.tierMsMax);
      return countReport(readReport(file), status);
    } finally {
      rmSync(directory, { recursive: true, force: true });
    }
  },
});

const TIERS: readonly Tier[] = [
  commandTier('lint', [bin('biome'), 'check', '--error-on-warnings', '.']),
  commandTier('types', [bin('tsc'), '--noEmit']),
  commandTier('build', ['npm', 'run', 'build']),
  ...VITEST_TIERS.map(vitestTier),
];

type Outcome = Counts & { readonly name: string; readonly seconds: number | undefined };

const printSummary = (outcomes: readonly Outcome[]): void => {
  say('');
  say(`${'tier'.padEnd(10)}${'passed'.padStart(8)}${'failed'.padStart(8)}${'seconds'.padStart(9)}`);
  for (const { name, passed, failed, seconds, note } of outcomes) {
    const columns = [String(passed), String(failed)].map((text) => text.padStart(8)).join('');
    say(`${name.padEnd(10)}${columns}${(seconds?.toFixed(1) ?? 'not run').padStart(9)}  ${note}`.trimEnd());
  }
};

const main = async (): Promise<number> => {
  const known = TIERS.map(({ name }) => name);
  const { words: names } = readArguments(
    { options: {}, usage: `usage: npm test [-- TIER...]\ntiers: ${known.join(' ')}` },
    (words) => findUnknown('tier', words, known),
  );
  const continuous = process.env['CI'] === 'true';
  const chosen = TIERS.filter((tier) => names.length === 0 || names.includes(tier.name));
  const outcomes: Outcome[] = [];
  if (process.getuid?.() === 0) await installHostPackages('tests');
  for (const tier of chosen) {
    const reason =
      interruptedBy !== undefined
        ? `interrupted by ${interruptedBy}`
        : tier.needsRoot && process.getuid?.() !== 0
          ? 'needs root'
          : undefined;
    if (reason !== undefined) {
      outcomes.push({
        name: tier.name,
        passed: 0,
        failed: 0,
        skipped: 1,
        note: reason,
        seconds: undefined,
      });
      continue;
    }
    say(`\n== ${tier.name}`);
    const start = performance.now();
    const counts = await tier.run();
    outcomes.push({ name: tier.name, ...counts, seconds: (performance.now() - start) / 1000 });
  }
  if (process.getuid?.() === 0) await settle(30_000);

  printSummary(outcomes);
  const sum = (key: 'passed' | 'failed' | 'skipped'): number =>
    outcomes.reduce((total, outcome) => total + outcome[key], 0);
  const notRun = outcomes.filter((outcome) => outcome.seconds === undefined);
  if (notRun.length > 0) say(`not run: ${notRun.map(({ name, note }) => `${name} (${note})`).join(', ')}`);
  if (chosen.length < TIERS.length) say(`partial: ${chosen.length} of ${TIERS.length} tiers were asked for`);
  // a machine of the continuous integration has to be able to run everything
  const failed = sum('failed') + (continuous ? sum('skipped') : 0);
  say(`${sum('passed')} passed, ${failed} failed`);
  if (interruptedBy !== undefined) return 130;
  return failed > 0 ? 1 : sum('skipped') > 0 ? 2 : 0;
};

process.exitCode = await main();
