/**
 * Every refusal and failure of the suite has one code from this table. Codes are stable: scripts, the wire
 * and the man pages match on them, never on text. The exit status follows sysexits(3) and is the same with
 * and without --json.
 */

/** sysexits(3), as far as the suite uses it. 75 is the only status that a caller may retry unchanged. */
export const EXIT = {
  usage: 64,
  data: 65,
  noInput: 66,
  noHost: 68,
  unavailable: 69,
  software: 70,
  os: 71,
  io: 74,
  tryAgain: 75,
  protocol: 76,
  noPermission: 77,
  config: 78,
} as const;

type Row = {
  readonly exit: number;
  readonly title: string;
  /** What to do where the error itself does not know better. */
  readonly next?: string;
};

const row = (exit: number, title: string, next?: string): Row =>
  next === undefined ? { exit, title } : { exit, title, next };

const MEND_CONFIG = 'mend what is named, then: xce-sandbox config show; man xce-sandbox.ini has every key';
const ASK_NODES = 'mend what the nodes name, then launch again; xce-sandbox status shows each node';

export const ERRORS = {
  // command line and configuration
  usage: row(EXIT.usage, 'the command line is not valid', 'xce-sandbox help'),
  'node-list': row(
    EXIT.usage,
    'the node list is not a valid hostlist expression',
    "write it as in 'n[1-3,7],m1': xce-sandbox(1), Lists of nodes",
  ),
  'node-unknown': row(
    EXIT.noHost,
    'the node is not one of [nodes] hosts, or not one of the lease',
    'xce-sandbox config show (the nodes of the cluster), or lease show (those of a lease)',
  ),
  'config-missing': row(EXIT.config, 'the configuration file cannot be read'),
  'config-syntax': row(
    EXIT.config,
    'a line of the configuration would not be read as it is meant',
    MEND_CONFIG,
  ),
  'config-value': row(EXIT.config, 'a configuration value is missing or not valid', MEND_CONFIG),
  'config-unsafe': row(
    EXIT.config,
    'others than root may write a file that root reads, or a directory above it, or may read a secret',
    'chown root: and chmod go-w what is named, and every directory above it',
  ),
  'pool-range': row(
    EXIT.config,
    'the pool overlaps a range that belongs to something else',
    'choose another [pool] range',
  ),
  'declared-ranges': row(
    EXIT.config,
    'a file in which this machine declares ids as taken cannot be read as one',
  ),
  'not-root': row(EXIT.noPermission, 'the command must run as root'),

  // name service
  'name-service': row(
    EXIT.unavailable,
    'the name service gave no answer that proves the uid unused',
    'ask by hand what the message names; if it is [directory] control_uid that is not found, name somebody there whom every directory knows',
  ),
  'uid-taken': row(EXIT.noPermission, 'the uid or gid is known to the name service'),
  submitter: row(
    EXIT.usage,
    'the submitter is root, a system account, a pool uid or unknown',
    'give the uid of a person, and behind a colon a gid if wanted',
  ),

  // lease log
  'log-missing': row(EXIT.noInput, 'there is no lease log where the configuration says'),
  'log-exists': row(EXIT.noPermission, 'there are signs of an earlier lease log'),
  'log-corrupt': row(EXIT.data, 'the lease log does not check'),
  'log-version': row(EXIT.data, 'the lease log was written by a newer version'),
  'log-foreign': row(EXIT.data, 'the lease log belongs to another cluster or instance'),
  'log-rollback': row(EXIT.data, 'the lease log is older than what this host has seen'),
  'log-fenced': row(EXIT.noPermission, 'another controller owns the lease log'),
  'log-outcome-unknown': row(
    EXIT.noPermission,
    'a successor log appeared; whether the record counts is for it to say',
  ),
  'log-full': row(EXIT.config, 'the directory of the lease log holds as many epochs as it may'),
  'log-busy': row(EXIT.tryAgain, 'another process holds the lease log'),
  'log-io': row(EXIT.io, 'the storage of the lease log failed'),
  'storage-unfit': row(EXIT.config, 'the storage does not keep the promises the lease log needs'),

  // leases
  'lease-missing': row(EXIT.noInput, 'no such lease'),
  'lease-conflict': row(EXIT.noPermission, 'the job attempt has a lease with other terms'),
  'lease-ended': row(EXIT.noPermission, 'the job attempt has ended; it never gets a lease again'),
  'lease-expired': row(EXIT.noPermission, 'the time of the lease is over'),
  'lease-state': row(EXIT.noPermission, 'the lease is not in a state that allows this'),
  'clock-skew': row(EXIT.unavailable, 'the clock of a host is too far off, or nothing says how far'),
  'worker-key': row(
    EXIT.noPermission,
    'the node answers with another worker key than the one that the lease was bound to',
    'if the node was installed anew, nothing on it can certify for the lease: once it is known to be clean, lease reclaim',
  ),
  'node-withheld': row(
    EXIT.unavailable,
    'the node was reclaimed from a lease and has not certified since; no job may use it',
  ),
  'pool-exhausted': row(EXIT.tryAgain, 'every uid of the pool is leased, quarantined or taken'),
  'release-blocked': row(
    EXIT.unavailable,
    'proof that nothing of the uid is left is missing; the lease is quarantined',
  ),
  'normalise-partial': row(EXIT.unavailable, 'inodes of the uid remain'),
  'normalise-refused': row(EXIT.noPermission, 'the root may not be walked'),
  'mount-changed': row(
    EXIT.noPermission,
    'the storage is not mounted as it was when the lease was bound to it',
  ),

  // tickets
  'ticket-missing': row(EXIT.noPermission, 'the request carries no ticket'),
  'ticket-malformed': row(EXIT.protocol, 'the ticket cannot be read'),
  'ticket-signature': row(EXIT.noPermission, 'the signature of the ticket does not verify'),
  'ticket-node': row(EXIT.noPermission, 'the ticket is for another node'),
  'ticket-cluster': row(EXIT.noPermission, 'the ticket is for another cluster or instance'),
  'ticket-expired': row(EXIT.noPermission, 'the ticket has expired'),
  'ticket-nonce': row(EXIT.noPermission, 'the ticket does not answer a nonce of this worker and boot'),
  'ticket-epoch': row(
    EXIT.noPermission,
    'the ticket is of an older epoch than this worker has seen',
    'the node has seen a later epoch of the log: xce-sandbox lease verify',
  ),
  'ticket-lease': row(
    EXIT.noPermission,
    'the ticket is of an older lease of the uid than this worker has seen',
  ),
  'ticket-tombstone': row(
    EXIT.noPermission,
    'the lease has been drained on this node; nothing starts for it again',
  ),

  // transport
  'worker-unreachable': row(
    EXIT.unavailable,
    'the worker of the node cannot be reached',
    'on the node: systemctl status xce-sandbox-worker; xce-sandbox status shows each node',
  ),
  'peer-unknown': row(EXIT.noPermission, 'the peer could not be identified'),
  'peer-role': row(EXIT.noPermission, 'the peer may not use this verb'),
  tls: row(EXIT.noPermission, 'the certificate of the peer does not verify'),
  'pki-exists': row(EXIT.noPermission, 'there are other certificates or keys already'),
  'pki-busy': row(EXIT.tryAgain, 'another process changes the revocation list'),
  protocol: row(EXIT.protocol, 'the peer does not speak the protocol'),
  'too-large': row(EXIT.protocol, 'a message, argument or environment is over its limit'),
  timeout: row(EXIT.unavailable, 'no answer within the deadline'),
  cancelled: row(EXIT.unavailable, 'the peer went away'),
  'worker-busy': row(EXIT.tryAgain, 'the worker has as many connections or requests as it takes'),

  // sandbox
  'sandbox-exists': row(EXIT.noPermission, 'a unit, record or directory of that name is in use and not ours'),
  'sandbox-missing': row(EXIT.noInput, 'the node has no such sandbox'),
  'sandbox-lost': row(
    EXIT.unavailable,
    'the sandbox ended while it was in use',
    'on the node: journalctl -u xce-sandbox-worker',
  ),
  'sandbox-refused': row(
    EXIT.unavailable,
    'the node is not fit for the sandbox',
    'on the node: journalctl -u xce-sandbox-worker',
  ),
  'resource-refused': row(
    EXIT.noPermission,
    'more was asked for than the configuration lets a job have',
    'xce-sandbox config show',
  ),
  'resource-unsupported': row(
    EXIT.unavailable,
    'the node cannot enforce a limit of the job',
    'on the node: cat /sys/fs/cgroup/cgroup.controllers',
  ),
  systemd: row(EXIT.os, 'systemd refused'),
  'node-dirty': row(EXIT.unavailable, 'something of the uid is left on the node'),
  certificate: row(EXIT.noPermission, 'the certificate of cleanliness does not fit the request'),

  // launch
  'launch-refused': row(EXIT.unavailable, 'a node refused; nothing was started', ASK_NODES),
  'env-file': row(EXIT.data, 'a line of the environment file is not NAME=VALUE'),
  'work-directory': row(
    EXIT.noInput,
    'the working directory cannot be entered on a node; nothing was started',
  ),
  'output-file': row(
    EXIT.io,
    'a file for the output of a job cannot be made, or others may write where it would lie',
  ),
  'launch-failed': row(
    EXIT.unavailable,
    'the launch did not end as a launch that succeeded does',
    'look at the output of the job; xce-sandbox status shows each node',
  ),
  'mpi-agent': row(
    EXIT.protocol,
    'the launcher asked for something the agent does not do',
    'xce-sandbox help launch',
  ),

  'reconcile-differs': row(
    EXIT.unavailable,
    'the lease log, the nodes and the storage do not agree',
    'xce-sandbox reconcile --apply ends what is over; the rest says what it waits for',
  ),

  // hooks
  'hook-facts': row(EXIT.noInput, 'the batch system does not say what its hook needs to know'),
  'hook-nodes': row(
    EXIT.unavailable,
    'a node of the job cannot be reached; the epilog ends the lease',
    'xce-sandbox status shows each node',
  ),

  // the machine
  os: row(EXIT.os, 'the operating system refused'),
  io: row(EXIT.io, 'a file could not be read or written'),
  output: row(EXIT.io, 'the result could not be written to standard output'),
  bug: row(EXIT.software, 'the suite broke one of its own rules'),
} as const satisfies Record<string, Row>;

export type ErrorCode = keyof typeof ERRORS;

/** What a reader of an error needs beside the code. Every field is optional; absent means nothing to say. */
export type ErrorFacts = {
  /** A message that tells several things, for readers with more than one line: what they have in common, and each. */
  readonly list?: { readonly heading: string; readonly items: readonly string[] };
  /** Where: a path with line, a node, a field. */
  readonly at?: string;
  /** What was left as it was. */
  readonly unchanged?: string;
  /** The next command or configuration line. */
  readonly next?: string;
  /** Further facts for --json; JSON-safe values only. */
  readonly detail?: Readonly<Record<string, unknown>>;
  readonly cause?: unknown;
};

/** The one error class. `message` says what is wrong in one line, without the code. */
export class XceError extends Error {
  readonly code: ErrorCode;
  readonly facts: ErrorFacts;

  constructor(code: ErrorCode, message: string, facts: ErrorFacts = {}) {
    super(message, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.name = 'XceError';
    this.code = code;
    this.facts = facts;
  }

  get exitStatus(): number {
    return ERRORS[this.code].exit;
  }

  /** The next command: of this error, or what is done about the code in general. */
  get next(): string | undefined {
    const { next }: Row = ERRORS[this.code];
    return this.facts.next ?? next;
  }
}

export const isErrorCode = (text: string): text is ErrorCode => Object.hasOwn(ERRORS, text);

/** Errnos of Linux that storage answers with and libuv has no name for: it says "Unknown system error -37". */
const UNNAMED: ReadonlyMap<string, string> = new Map([
  ['37', 'ENOLCK'],
  ['77', 'EBADFD'],
  ['116', 'ESTALE'],
  ['117', 'EUCLEAN'],
  ['122', 'EDQUOT'],
]);

/** The errno name of a failed system call ('EIO'), or undefined for anything else. */
export const errnoOf = (error: unknown): string | undefined => {
  if (!(error instanceof Error) || !('code' in error) || typeof error.code !== 'string') return undefined;
  const number = /^Unknown system error -([0-9]+)$/.exec(error.code)?.[1];
  if (number !== undefined) return UNNAMED.get(number);
  return /^E[A-Z0-9]+$/.test(error.code) ? error.code : undefined;
};

/** What anything thrown says, without its stack. */
export const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));

/** What anything thrown says, with its stack, for a log. */
export const stackOf = (error: unknown): string =>
  error instanceof Error ? (error.stack ?? error.message) : String(error);

/** Anything thrown that nobody expected, with its stack. */
export const asUnexpected = (error: unknown): XceError =>
  error instanceof XceError
    ? error
    : new XceError('bug', `unexpected failure: ${stackOf(error)}`, { cause: error });

/** Anything thrown as the error that callers see: what has no code of ours is a bug. */
export const asXceError = (error: unknown): XceError =>
  error instanceof XceError ? error : new XceError('bug', messageOf(error), { cause: error });

/** Runs where the code cannot be reached unless a rule of ours is broken. */
export function assert(condition: boolean, rule: string): asserts condition {
  if (!condition) throw new XceError('bug', `internal rule broken: ${rule}`);
}
