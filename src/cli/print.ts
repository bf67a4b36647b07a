/**
 * The only file that writes to the terminal. stdout is data: one JSON document with --json, else a table or
 * plain lines. stderr is talk. Colour only on a terminal that wants it (chalk decides: NO_COLOR, FORCE_COLOR).
 */
import chalk from 'chalk';
import { errnoOf, XceError } from '../base/errors.ts';

const writeTo = (stream: NodeJS.WriteStream, name: string, data: string | Uint8Array): Promise<void> =>
  new Promise((resolve, reject) => {
    const fail = (error: Error): void =>
      reject(
        new XceError('output', `cannot write to ${name}: ${errnoOf(error) ?? error.message}`, {
          cause: error,
        }),
      );
    stream.once('error', fail);
    stream.write(data, (error) => {
      stream.off('error', fail);
      if (error) fail(error);
      else resolve();
    });
  });

/** Writes all of it, or throws 'output' with the errno: a result that cannot be delivered is not a success. */
export const writeOut = (data: string | Uint8Array): Promise<void> =>
  writeTo(process.stdout, 'standard output', data);

/** What a job wrote to its stderr; for talk of the suite see writeTalk. */
export const writeErr = (data: Uint8Array | string): Promise<void> =>
  writeTo(process.stderr, 'standard error', data);

/** A remark for the operator; never data. A broken stderr cannot be reported anywhere. */
export const writeTalk = (text: string): void => {
  process.stderr.write(text);
};

export const writeJson = (value: unknown): Promise<void> => writeOut(`${JSON.stringify(value, null, 2)}\n`);

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
  return `${[chalk.bold(line(header)), ...rows.map(line)].join('\n')}\n`;
};

/** The whole of an error on stderr: what, where, what was left, what to do. */
export const formatError = (error: XceError): string => {
  const { at, unchanged, next } = error.facts;
  return [
    `${chalk.red('xce-sandbox:')} ${error.message} [${error.code}]`,
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
    ...(error.facts.next === undefined ? {} : { next: error.facts.next }),
    ...(error.facts.detail === undefined ? {} : { detail: error.facts.detail }),
  },
});
