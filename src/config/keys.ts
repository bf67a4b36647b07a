/**
 * Every key of the configuration file: its type as the man page calls it, its default as one would write it,
 * and its parser. Nothing else knows a key.
 */
import { LIMITS } from '../base/limits.ts';
import { SCHEDULERS } from '../scheduler/schedulers.ts';
import {
  type Parser,
  parseCluster,
  parseControlUid,
  parseCpusLimit,
  parseDaysBetween,
  parseDevice,
  parseDurationBetween,
  parseGroup,
  parseHosts,
  parseIdRange,
  parseInstance,
  parseInterface,
  parseList,
  parseListen,
  parseMemlock,
  parseMemoryLimit,
  parseNetwork,
  parseNode,
  parseNodePattern,
  parseOneOf,
  parsePath,
  parsePercentLimit,
  parseSearchPath,
  parseSiteVariable,
  parseSizeBytes,
  parseSizeLimitFrom,
  parseVariableName,
  parseWhole,
} from './values.ts';

export type Key<T> = {
  readonly type: string;
  readonly parse: Parser<T>;
  /** `text` is parsed like a value of the file; without a default the key must be there, `optional` may be absent. */
  readonly fallback: { readonly text: string } | 'required' | 'optional';
};

type RequiredKey<T> = Key<T> & { readonly fallback: { readonly text: string } | 'required' };
type OptionalKey<T> = Key<T> & { readonly fallback: 'optional' };

const required = <T>(type: string, parse: Parser<T>): RequiredKey<T> => ({
  type,
  parse,
  fallback: 'required',
});
const optional = <T>(type: string, parse: Parser<T>): OptionalKey<T> => ({
  type,
  parse,
  fallback: 'optional',
});
const preset = <T>(type: string, text: string, parse: Parser<T>): RequiredKey<T> => ({
  type,
  parse,
  fallback: { text },
});

const secondMs = 1000;
const minuteMs = 60 * secondMs;
const hourMs = 60 * minuteMs;

/**
 * Room for what the worker puts below it: a unix socket's path has at most 107 bytes, of which
 * `/<instance>/box/<lease>/agent.sock` takes up to 49.
 */
const RUN_DIRECTORY_BYTES_MAX = 58;

export const KEYS = {
  cluster: {
    name: required('name', parseCluster),
    instance: preset('name', 'main', parseInstance),
    pki: preset('path', '/etc/xce-sandbox/pki', parsePath()),
  },
  pool: {
    range: required('range', parseIdRange),
  },
  directory: {
    control_uid: required('uid', parseControlUid),
    ranges: preset('list of ranges', '', parseList(parseIdRange)),
    timeout: preset('duration', '5s', parseDurationBetween(100, minuteMs)),
  },
  lease: {
    directory: required('path', parsePath()),
    storage: preset('word', 'shared', parseOneOf('shared', 'local')),
    probe_listen: preset('address', '0.0.0.0:7714', parseListen),
    lock_timeout: preset('duration', '10s', parseDurationBetween(secondMs, 10 * minuteMs)),
    storage_timeout: preset('duration', '30s', parseDurationBetween(secondMs, 10 * minuteMs)),
    skew: preset('duration', '5s', parseDurationBetween(100, 10 * minuteMs)),
    ttl: preset('duration', '1h', parseDurationBetween(LIMITS.ttlMsMin, LIMITS.ttlMsMax)),
    remember: preset('days', '30d', parseDaysBetween(1, 3650)),
  },
  nodes: {
    hosts: required('hostlist', parseHosts),
    port: preset('port', '7713', parseWhole(1, 65_535)),
    connect_timeout: preset('duration', '5s', parseDurationBetween(100, LIMITS.connectTimeoutMsMax)),
    request_timeout: preset('duration', '1m', parseDurationBetween(secondMs, hourMs)),
  },
  worker: {
    node: optional('node', parseNode),
    listen: preset('address', '0.0.0.0', parseListen),
    state_directory: preset('path', '/var/lib/xce-sandbox', parsePath()),
    run_directory: preset('path', '/run/xce-sandbox', parsePath(RUN_DIRECTORY_BYTES_MAX)),
    drain_timeout: preset('duration', '30s', parseDurationBetween(secondMs, hourMs)),
  },
  sandbox: {
    tasks_max: preset('number', '4096', parseWhole(LIMITS.sandboxTasksMin, LIMITS.sandboxTasksMax)),
    cpu_quota: preset('percent', 'infinity', parsePercentLimit),
    cpus: preset('list of processors', 'all', parseCpusLimit),
    memory_max: preset('size', 'infinity', parseMemoryLimit),
    tmp_size: preset('size', '1G', parseSizeBytes),
    tmp_inodes: preset('number', '100000', parseWhole(64, 1_000_000_000)),
    shm_size: preset('size', '1G', parseSizeBytes),
    memlock: preset('size', '64M', parseMemlock),
    // Arguments and environment of a step may take a quarter of the stack.
    stack: preset('size', '8M', parseSizeLimitFrom(8 << 20)),
    stop_timeout: preset('duration', '5s', parseDurationBetween(secondMs, 10 * minuteMs)),
    network: preset('word', 'job-nodes', parseOneOf('job-nodes', 'open')),
    network_names: preset('list of names', '%n', parseList(parseNodePattern)),
    network_allow: preset('list of networks', '', parseList(parseNetwork)),
    path: preset(
      'search path',
      '/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin',
      parseSearchPath,
    ),
    devices: preset('list of paths', '', parseList(parseDevice)),
    groups: preset('list of names', '', parseList(parseGroup)),
    pass_environment: preset('list of names', '', parseList(parseSiteVariable)),
  },
  hooks: {
    scheduler: preset('word', 'detect', parseOneOf('detect', ...SCHEDULERS)),
    deadline: preset('duration', '5m', parseDurationBetween(secondMs, hourMs)),
    grace: preset('duration', '10m', parseDurationBetween(secondMs, 24 * hourMs)),
    drain: optional('path', parsePath()),
    xce_job: preset('name', 'XCE_JOB_ID', parseVariableName),
    xce_attempt: preset('name', 'XCE_JOB_ATTEMPT', parseVariableName),
    xce_submitter: preset('name', 'XCE_JOB_UID', parseVariableName),
    xce_nodes: preset('name', 'XCE_JOB_NODES', parseVariableName),
    xce_end: preset('name', 'XCE_JOB_END_TIME', parseVariableName),
  },
  mpi: {
    interfaces: preset('list of names', '', parseList(parseInterface)),
    agent_timeout: preset('duration', '30s', parseDurationBetween(secondMs, LIMITS.agentTimeoutMsMax)),
  },
} as const;

/** Keys of each `[storage NAME]`. */
export const STORAGE_KEYS = {
  path: required('path', parsePath()),
  workspace: optional('path', parsePath()),
  local: preset('word', 'no', parseOneOf('no', 'yes')),
} as const;

type KeyTable = Readonly<Record<string, Key<unknown>>>;

/** What a table of keys is decoded to. */
export type ValuesOf<Table extends KeyTable> = {
  readonly [K in keyof Table]: Table[K] extends RequiredKey<infer T>
    ? T
    : Table[K] extends OptionalKey<infer T>
      ? T | undefined
      : never;
};
