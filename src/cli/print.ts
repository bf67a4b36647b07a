/**
 * The only file that writes to the terminal. stdout is data: one JSON document with --json, else a table or
 * plain lines. stderr is talk.
 */
import { errnoOf, XceError } from '../base/errors.ts';
import { isOutputClosed, type StandardDescriptor, writeStandard } from '../os/standard-output.ts';

const failed = (name: string, error: Error): XceError =>
  new XceError('output', `cannot write to ${name}: ${errnoOf(error) ?? error.message}`, {
    unchanged: 'what the command had done by then; only its result was not delivered',
    next: 'xce-sandbox lease list',
    cause: error,
  });

const writeTo = (stream: NodeJS.WriteStream, name: string, data: string | Uint8Array): Promise<void> =>
  new Promise((resolve, reject) => {
    stream.write(data, (error) => (error ? reject(failed(name, error)) : resolve()));
  });

let firstFailure: Error | undefined;

/** How text is set off: a heading on stdout, what an error begins with on stderr. */
export type Colours = { heading(text: string): string; alarm(text: string): string };

const NO_COLOURS: Colours = { heading: (text) => text, alarm: (text) => text };
let colours = NO_COLOURS;

const COLUMNS_DEFAULT = 80;

let hasStreams = false;

/** Whether a standard stream is a terminal: of all others no more is known than that they are none. */
export const isTerminal = (fd: StandardDescriptor): boolean =>
  hasStreams && (fd === 1 ? process.stdout : process.stderr).isTTY;

/**
 * Writes by Node's streams from now on, for terminals and for oclif, which writes by itself. Takes their errors over,
 * from the listener as well that oclif puts on stdout and that throws where nobody can catch it. A failed write is
 * reported to whoever wrote; what oclif wrote (help), and when, only the stream knows: see finishOutput.
 */
export const ownStandardStreams = (wanted = colours): void => {
  colours = wanted;
  if (hasStreams) return;
  hasStreams = true;
  for (const stream of [process.stdout, process.stderr]) {
    // A terminal that nobody has told its size says 0, and a spinner would have a line for each letter.
    if (stream.columns === 0) stream.columns = COLUMNS_DEFAULT;
  }
  process.stdout.removeAllListeners('error');
  process.stdout.on('error', (error) => {
    firstFailure ??= error;
  });
  process.stderr.on('error', () => undefined);
};

const NAMES = { 1: 'standard output', 2: 'standard error' } as const;

/** To the descriptor itself, without the streams, which take milliseconds to load; see ownStandardStreams. */
const writeInPlace = async (fd: StandardDescriptor, data: string | Uint8Array): Promise<void> => {
  try {
    await writeStandard(fd, typeof data === 'string' ? Buffer.from(data) : data);
  } catch (error) {
    throw failed(NAMES[fd], error instanceof Error ? error : new Error(String(error)));
  }
};

const write = (fd: StandardDescriptor, data: string | Uint8Array): Promise<void> =>
  hasStreams ? writeTo(fd === 1 ? process.stdout : process.stderr, NAMES[fd], data) : writeInPlace(fd, data);

/** Throws 'output' unless everything that was written to stdout so far has been delivered. */
export const finishOutput = async (): Promise<void> => {
  await writeOut('').catch((error: unknown) => {
    if (firstFailure === undefined) throw error;
  });
  if (firstFailure !== undefined) throw failed('standard output', firstFailure);
};

/** Nobody should miss the result of this command; see requireOutput. */
let isResultNeeded = false;

/** Whether a result that may be missed could not be delivered because its reader has gone, as in `| head -1`. */
export const isReaderGone = (error: XceError): boolean =>
  !isResultNeeded && error.code === 'output' && errnoOf(error.facts.cause) === 'EPIPE';

/**
 * For commands whose result nobody should miss: throws 'output' where it would be lost without a word, and makes a
 * reader that goes away later an error.
 */
export const requireOutput = (): void => {
  isResultNeeded = true;
  if (!isOutputClosed()) return;
  throw new XceError('output', 'standard output is closed; nobody would learn the result', {
    unchanged: 'nothing was done',
    next: 'redirect the output; > /dev/null discards it',
  });
};

/** Writes all of it, or throws 'output' with the errno: a result that cannot be delivered is not a success. */
export const writeOut = (data: string | Uint8Array): Promise<void> => write(1, data);

/** What a job wrote to its stderr; for talk of the suite see writeTalk. */
export const writeErr = (data: string | Uint8Array): Promise<void> => write(2, data);

/** A remark for the operator; never data. A broken stderr cannot be reported anywhere. */
export const writeTalk = (text: string): void => {
  if (hasStreams) process.stderr.write(text);
  else writeStandard(2, Buffer.from(text)).catch(() => undefined);
};

export const writeJson = (value: unknown): Promise<void> => writeOut(`${JSON.stringify(value, null, 2)}\n`);

export const showResult = async <T>(
  isJson: boolean,
  result: T,
  render: (result: T) => string | Promise<string>,
): Promise<void> => {
  if (isJson) await writeJson(result);
  else await writeOut(await render(result));
};

/** Columns padded to their widest cell; the last one is left ragged. */
export const formatTable = (header: readonly string[], rows: readonly (readonly string[])[]): string => {
  const widths = header.map((title, column) =>
    Math.max(title.length, ...rows.map((row) => row[column]?.length ?? 0)),
  );
  const line = (cells: readonly string[]): string =>
    cells
      .map((cell, column) => (column === cells.length - 1 ? cell : cell.padEnd(widths[column] ?? 0)))
      .join('  ')
      .trimEnd();
  return `${[colours.heading(line(header)), ...rows.map(line)].join('\n')}\n`;
};

/** The whole of an error on stderr: what, where, what was left, what to do. */
export const formatError = (error: XceError): string => {
  const { next } = error;
  const { at, unchanged, list } = error.facts;
  return [
    `${colours.alarm('xce-sandbox:')} ${list?.heading ?? error.message} [${error.code}]`,
    ...(list?.items ?? []).map((item) => `  ${item}`),
    ...(at === undefined || error.message.includes(at) ? [] : [`  at: ${at}`]),
    ...(unchanged === undefined ? [] : [`  unchanged: ${unchanged}`]),
    ...(next === undefined ? [] : [`  next: ${next}`]),
    '',
  ].join('\n');
};

export const errorDocument = (error: XceError, exitStatus: number): Record<string, unknown> => ({
  error: {
    code: error.code,
    message: error.message,
    exitStatus,
    ...(error.facts.at === undefined ? {} : { at: error.facts.at }),
    ...(error.facts.unchanged === undefined ? {} : { unchanged: error.facts.unchanged }),
    ...(error.next === undefined ? {} : { next: error.next }),
    ...(error.facts.detail === undefined ? {} : { detail: error.facts.detail }),
  },
});
