/** Names of the files that the output of a launch goes to: text with `%` fields, filled in for each step. */
import { XceError } from '../base/errors.ts';
import { quoteText } from '../base/escape.ts';
import { LIMITS } from '../base/limits.ts';
import type { Place } from './outcome.ts';

const FIELDS = { '%j': 'job', '%a': 'attempt', '%n': 'node', '%t': 'task' } as const;
type Field = (typeof FIELDS)[keyof typeof FIELDS];

/** Texts and fields in turn. */
export type OutputPattern = readonly (string | { readonly field: Field })[];

/** The pattern that a text is, or what is wrong with it and where. */
export const parseOutputPattern = (
  text: string,
):
  | { readonly pattern: OutputPattern; readonly problem?: never }
  | { readonly problem: string; readonly pattern?: never } => {
  if (text === '') return { problem: 'it is empty' };
  if (Buffer.byteLength(text) > LIMITS.pathBytesMax)
    return { problem: `it is over ${LIMITS.pathBytesMax} bytes` };
  if (text.includes('\0')) return { problem: 'it has a NUL byte' };
  if (text.endsWith('/')) return { problem: 'it names a directory' };
  const pattern: (string | { readonly field: Field })[] = [];
  let position = 1;
  for (const piece of text.split(/(%.?)/su)) {
    if (piece === '%%') pattern.push('%');
    else if (!piece.startsWith('%')) pattern.push(piece);
    else if (piece in FIELDS) pattern.push({ field: FIELDS[piece as keyof typeof FIELDS] });
    else return { problem: `${quoteText(piece)} at character ${position} is none of %j, %a, %n, %t and %%` };
    position += piece.length;
  }
  return { pattern };
};

/**
 * The name for one step. Throws 'output-file' where the job id would lead it elsewhere: a batch system may put any
 * character into one.
 */
export const fillOutputPattern = (
  pattern: OutputPattern,
  { job, attempt, node, task }: Place & { readonly job: string; readonly attempt: number },
): string => {
  const values: Readonly<Record<Field, string>> = {
    job,
    attempt: String(attempt),
    node,
    task: String(task ?? 0),
  };
  const isElsewhere = job.includes('/') || job === '.' || job === '..';
  if (isElsewhere && pattern.some((part) => typeof part !== 'string' && part.field === 'job')) {
    throw new XceError('output-file', `the job id ${quoteText(job)} cannot be part of the name of a file`, {
      unchanged: 'nothing was started',
      next: 'give a name without %j',
    });
  }
  return pattern.map((part) => (typeof part === 'string' ? part : values[part.field])).join('');
};
