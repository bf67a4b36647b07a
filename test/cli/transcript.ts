/** Transcripts: what is typed, and what must come back on each stream. */
import { expect } from 'vitest';
import type { CliHost, End, Options } from './host.ts';

/** The whole of a stream, or a part of it. */
type Said = string | RegExp;

export type Step = Options & {
  /** Words between blanks; a list where a word has blanks of its own, or none at all. */
  readonly args: string | readonly string[];
  readonly status?: number;
  readonly stdout?: Said;
  readonly stderr?: Said;
  /** Paths that must not be there afterwards. */
  readonly absent?: readonly string[];
};

export const wordsOf = (args: string | readonly string[]): readonly string[] =>
  typeof args === 'string' ? args.split(' ').filter(Boolean) : args;

const expectSaid = (said: string, wanted: Said, what: string): void => {
  if (typeof wanted === 'string') expect(said, what).toBe(wanted);
  else expect(said, what).toMatch(wanted);
};

/** Runs the step and compares. What is not given must be: status 0, nothing on either stream. */
export const check = async (host: CliHost, step: Step): Promise<End> => {
  const end = await host.xce(wordsOf(step.args), step);
  const what = `xce-sandbox ${wordsOf(step.args).join(' ')}`;
  expect({ command: what, status: end.status, stderr: end.stderr }).toMatchObject({
    status: step.status ?? 0,
  });
  expectSaid(end.stdout, step.stdout ?? '', `stdout of ${what}`);
  expectSaid(end.stderr, step.stderr ?? '', `stderr of ${what}`);
  for (const path of step.absent ?? []) expect(host.exists(path), `${path} after ${what}`).toBe(false);
  return end;
};

export const checkAll = async (host: CliHost, steps: readonly Step[]): Promise<void> => {
  for (const step of steps) await check(host, step);
};

export type Refusal = Options & {
  readonly args: string | readonly string[];
  readonly code: string;
  readonly status: number;
  /** On stderr, beside the code. */
  readonly says?: RegExp;
  /** The command writes to the log on its way to the refusal: not twice at the same time. */
  readonly inTurn?: boolean;
};

type ErrorDocument = {
  readonly error: {
    readonly code: string;
    readonly message: string;
    readonly exitStatus: number;
    readonly next?: string;
    readonly detail?: unknown;
  };
};

/** What is said on stderr, without progress and without the fractions of a second that two runs differ by. */
const talkOf = ({ stderr }: End): string =>
  stderr
    .split('\n')
    .filter((line) => !/^\d{4}-\d\d-\d\dT\S+Z /.test(line))
    .join('\n')
    .replaceAll(/(T\d\d:\d\d):[0-9.]+Z/g, '$1');

/**
 * The command is refused with this code: the same status with and without --json, one message on stderr, nothing on
 * stdout but the document that --json asks for. Returns the document.
 */
export const expectRefusal = async (host: CliHost, refusal: Refusal): Promise<ErrorDocument['error']> => {
  const { code, status, says = /./ } = refusal;
  const words = wordsOf(refusal.args);
  const end = words.indexOf('--');
  const at = end === -1 ? words.length : end;
  const first = host.xce(words, refusal);
  if (refusal.inTurn === true) await first;
  const second = host.xce([...words.slice(0, at), '--json', ...words.slice(at)], refusal);
  const [plain, json] = [await first, await second];
  const what = `xce-sandbox ${words.join(' ')}`;
  expect({ what, status: plain.status, stderr: plain.stderr }).toMatchObject({ status });
  expect(plain.stdout, what).toBe('');
  expect(plain.stderr, what).toMatch(says);
  expect(talkOf(plain).split('\n')[0], what).toMatch(new RegExp(`^xce-sandbox: .* \\[${code}\\]$`));
  expect(talkOf(json), what).toBe(talkOf(plain));
  const document = JSON.parse(json.stdout) as ErrorDocument;
  expect(document.error, what).toMatchObject({ code, exitStatus: status });
  expect(json.status, what).toBe(status);
  return document.error;
};

/** Runs a command after which everything below a directory must be as it was. */
export const leavesAsIs = async (
  host: CliHost,
  directory: string,
  command: () => Promise<unknown>,
): Promise<void> => {
  const before = host.snapshot(directory);
  await command();
  expect(host.snapshot(directory)).toEqual(before);
};
