/**
 * What can be wrong with a lease log as a whole, and what an operator does about it. Whatever command meets one of
 * these says the same of it; xce-sandbox-log(5), RECOVERY, has a paragraph on each.
 */
import { dirname } from 'node:path';
import { type ErrorFacts, XceError } from '../base/errors.ts';

type Row = {
  readonly code: 'log-corrupt' | 'log-rollback' | 'log-foreign' | 'log-version' | 'log-missing';
  /** The next command; `what` is the file or directory that it is about. */
  next(directory: string, what: string): string;
};

const PAGE = 'xce-sandbox-log(5), RECOVERY';

/** Nobody can say what stood in bytes that do not check; whoever has another copy of them can. */
const restore = (directory: string, what: string): string =>
  `stop allocating; cp -a ${directory} to a safe place; bring back ${what} from a snapshot or a replica of the storage; xce-sandbox lease verify; see ${PAGE}`;

const DAMAGES = {
  /** A record that does not check. */
  record: { code: 'log-corrupt', next: restore },
  /** A number without a file. */
  gap: {
    code: 'log-corrupt',
    next: (directory) => restore(directory, 'the files that are missing'),
  },
  /** No file counts. */
  void: {
    code: 'log-corrupt',
    next: (directory) => restore(directory, 'the newest epoch that was complete'),
  },
  rollback: {
    code: 'log-rollback',
    next: (directory) => restore(directory, `the newest state of ${directory}`),
  },
  /** The memory of this host, and not the log, is what cannot be read. */
  memory: {
    code: 'log-rollback',
    next: (_, path) =>
      `${path} says what this host has seen of the log; remove it only if the log is known to be the newest; see ${PAGE}`,
  },
  foreign: { code: 'log-foreign', next: () => `correct [lease] directory; see ${PAGE}` },
  newer: {
    code: 'log-version',
    next: () => 'install the xce-sandbox version that the owner of the log runs',
  },
  /** There is no such directory. */
  directory: {
    code: 'log-missing',
    next: () => `mount the storage of the lease log, or correct [lease] directory; see ${PAGE}`,
  },
  /** The same where a log is to be made, on a disk of this host alone. */
  'local-directory': {
    code: 'log-missing',
    next: (directory) =>
      `for the first log of this host: mkdir -p -m 0700 ${directory}; else correct [lease] directory`,
  },
  /** There is nothing of a log in it. */
  none: {
    code: 'log-missing',
    next: (_, what) =>
      `check that its storage is mounted (it lies on ${what}); only "lease init" makes a log; see ${PAGE}`,
  },
} as const satisfies Record<string, Row>;

export type Damage = keyof typeof DAMAGES;

const UNCHANGED = 'nothing was written to the lease log';

/** `directory` is the one of the log, `what` the file that it is about where that is another. */
export const damaged = (
  damage: Damage,
  message: string,
  where: { readonly directory: string; readonly what?: string },
  facts: Omit<ErrorFacts, 'next' | 'unchanged'> = {},
): XceError => {
  const { code, next }: Row = DAMAGES[damage];
  const { directory, what = directory } = where;
  return new XceError(code, message, {
    at: what,
    ...facts,
    unchanged: UNCHANGED,
    next: next(directory, what),
  });
};

/** A number that has no file, and had one. */
export const fileGone = (path: string): XceError =>
  damaged('gap', `${path} is gone`, { directory: dirname(path), what: path });

export const noneComplete = (directory: string): XceError =>
  damaged('void', `no epoch in ${directory} is complete`, { directory });

/** A file without bytes, and none above it that counts. */
export const emptiedOnTop = (directory: string, path: string): XceError =>
  damaged('void', `${path} is empty, and no epoch above it is complete`, { directory, what: path });

/** Said of a log that counts all the same, and so with every command that reads it. */
export const describeTornTail = ({
  path,
  offset,
  bytes,
}: {
  readonly path: string;
  readonly offset: number;
  readonly bytes: number;
}): string =>
  `torn tail: ${bytes} bytes from offset ${offset} of ${path} do not count; "lease repair" on the owner of the log goes on in the next epoch`;

const errnoAdvice: ReadonlyMap<string, string> = new Map([
  ['ETIMEDOUT', 'bring back the server of the storage; then try again'],
  ['ENOSPC', 'make room on the storage; then try again'],
  ['EDQUOT', 'raise the quota on the storage; then try again'],
  ['EROFS', 'mount the storage for writing; then try again'],
]);

/** What is done about a call of the storage that failed. */
export const adviseOnStorage = (errno: string | undefined, path: string): string =>
  errnoAdvice.get(errno ?? '') ??
  `look at the storage (findmnt -T ${path}; dmesg); then try again; see ${PAGE}`;
