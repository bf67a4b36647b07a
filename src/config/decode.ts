/**
 * Bytes of a configuration file to settings, or one error that tells all its faults. Order: lines (lines.ts),
 * names of sections and keys, values (keys.ts), what values must be together (checks.ts), and last a comparison
 * with what the `ini` package makes of the same bytes.
 */
import { escapeText, quoteText } from '../base/escape.ts';
import { parseNodeName, SECTION_NAME } from '../base/ids.ts';
import { LIMITS } from '../base/limits.ts';
import { checkTogether } from './checks.ts';
import { createFaultList, type FaultList } from './fault.ts';
import { KEYS, type Key, STORAGE_KEYS, type ValuesOf } from './keys.ts';
import { compareWithIni, type Entry, readLines, type Section } from './lines.ts';
import { findNear } from './near.ts';
import type { EnvironmentSettings, Settings, StorageSettings } from './settings.ts';
import { parseSiteVariable } from './values.ts';

/** One effective value, as one would write it in the file, and where it came from. */
export type Origin = {
  readonly section: string;
  readonly key: string;
  /** null: the key is absent and has no default. */
  readonly value: string | null;
  /** `FILE:LINE`, `default`, or `host name` for the node name that the host gave itself. */
  readonly from: string;
};

export type DecodedConfig = { readonly settings: Settings; readonly origins: readonly Origin[] };

type SectionName = keyof typeof KEYS;
type KeyTable = Readonly<Record<string, Key<unknown>>>;

const SECTION_NAMES = Object.keys(KEYS);
const STORAGE = /^storage (.*)$/;
const ENVIRONMENT = /^environment (.*)$/;
/** Of a [lease] probe_listen that gives an address alone. */
const PROBE_PORT = 7714;

const tableOf = (section: string): KeyTable | undefined => {
  if (STORAGE.test(section)) return STORAGE_KEYS;
  return Object.hasOwn(KEYS, section) ? KEYS[section as SectionName] : undefined;
};

/** Whether the keys of a section are its own: names of variables. */
const isEnvironment = (section: string): boolean => ENVIRONMENT.test(section);

const hint = (word: string, known: readonly string[]): string => {
  const near = findNear(word, known);
  return near === undefined ? '' : `; did you mean "${near}"?`;
};

const checkSectionName = ({ name, line }: Section, faults: FaultList): void => {
  const storage = STORAGE.exec(name)?.[1];
  if (storage !== undefined && !SECTION_NAME.test(storage)) {
    const rule = 'a lower-case letter, then lower-case letters, digits, - and _, at most 32';
    faults.add('config-syntax', line, `${quoteText(storage)} is not a storage name (${rule})`);
  } else if (isEnvironment(name)) {
    if (SECTION_NAME.test(name.replace(ENVIRONMENT, '$1'))) return;
    const rule = 'a lower-case letter, then lower-case letters, digits, - and _, at most 32';
    faults.add('config-syntax', line, `${quoteText(name)} does not name an environment (${rule})`);
  } else if (tableOf(name) === undefined) {
    const meant = /^storage/i.test(name) ? '; write [storage NAME]' : hint(name, SECTION_NAMES);
    faults.add('config-syntax', line, `unknown section ${quoteText(name)}${meant}`);
  }
};

/** A section as it stands in the file, whatever its name is made of. */
const titleOf = (section: string): string => `[${escapeText(section)}]`;

const checkKeyName = (section: string, table: KeyTable, { key, line }: Entry, faults: FaultList): void => {
  if (Object.hasOwn(table, key)) return;
  const home = Object.entries(KEYS).find(([, keys]) => Object.hasOwn(keys, key))?.[0];
  const meant = home === undefined ? hint(key, Object.keys(table)) : `; it belongs to [${home}]`;
  faults.add('config-syntax', line, `unknown key ${quoteText(key)} in ${titleOf(section)}${meant}`);
};

/** What decoding one section needs and adds to. */
type Sink = {
  readonly fileName: string;
  readonly faults: FaultList;
  readonly origins: Origin[];
  /** Every line was read. If not, a key that seems to be missing may stand in a line that was refused. */
  readonly complete: boolean;
};

/**
 * Decodes one section by its table. The result lacks a key only where a fault was added, so it may be used as
 * what its type says only while there is none.
 */
const decodeSection = <Table extends KeyTable>(
  name: string,
  table: Table,
  section: Section | undefined,
  { fileName, faults, origins, complete }: Sink,
): ValuesOf<Table> => {
  const values: Record<string, unknown> = {};
  for (const [key, { parse, fallback }] of Object.entries(table)) {
    const entry = section?.entries.find((candidate) => candidate.key === key);
    const text = entry?.value ?? (typeof fallback === 'object' ? fallback.text : undefined);
    const line = entry?.line ?? section?.line ?? 0;
    if (text === undefined) {
      if (fallback === 'required') {
        if (complete)
          faults.add('config-value', line, `${titleOf(name)} ${key} is missing; it has no default`);
      } else {
        origins.push({ section: name, key, value: null, from: 'default' });
      }
      continue;
    }
    const parsed = parse(text);
    if ('reason' in parsed) {
      faults.add('config-value', line, `${titleOf(name)} ${key}: ${parsed.reason}`);
      continue;
    }
    values[key] = parsed.value;
    const from = entry === undefined ? 'default' : `${fileName}:${entry.line}`;
    origins.push({ section: name, key, value: text, from });
  }
  return values as ValuesOf<Table>;
};

type Values = { readonly [S in SectionName]: ValuesOf<(typeof KEYS)[S]> };

const buildSettings = (
  values: Values,
  node: Settings['worker']['node'],
  storage: readonly StorageSettings[],
  environments: readonly EnvironmentSettings[],
): Settings => {
  const { cluster, pool, directory, lease, nodes, worker, sandbox, hooks, mpi } = values;
  return {
    cluster: { name: cluster.name, instance: cluster.instance, pki: cluster.pki },
    // Branded as uids ahead of checkTogether, which refuses what is not one.
    pool: pool.range as Settings['pool'],
    directory: {
      controlUid: directory.control_uid,
      ranges: directory.ranges,
      timeoutMs: directory.timeout,
    },
    lease: {
      directory: lease.directory,
      storage: lease.storage,
      probeListen: { address: lease.probe_listen.address, port: lease.probe_listen.port ?? PROBE_PORT },
      lockTimeoutMs: lease.lock_timeout,
      storageTimeoutMs: lease.storage_timeout,
      skewMs: lease.skew,
      ttlMs: lease.ttl,
      rememberDays: lease.remember,
    },
    nodes: {
      hosts: nodes.hosts,
      port: nodes.port,
      connectTimeoutMs: nodes.connect_timeout,
      requestTimeoutMs: nodes.request_timeout,
    },
    worker: {
      node,
      listen: { address: worker.listen.address, port: worker.listen.port ?? nodes.port },
      stateDirectory: `${worker.state_directory}/${cluster.instance}`,
      runDirectory: `${worker.run_directory}/${cluster.instance}`,
      drainTimeoutMs: worker.drain_timeout,
    },
    sandbox: {
      tasksMax: sandbox.tasks_max,
      cpuPercent: sandbox.cpu_quota,
      cpus: sandbox.cpus,
      memoryBytes: sandbox.memory_max,
      tmpBytes: sandbox.tmp_size,
      tmpInodes: sandbox.tmp_inodes,
      shmBytes: sandbox.shm_size,
      memlock: sandbox.memlock,
      stackBytes: sandbox.stack,
      stopTimeoutMs: sandbox.stop_timeout,
      network: sandbox.network,
      networkNames: sandbox.network_names,
      networkAllow: sandbox.network_allow,
      path: sandbox.path,
      devices: sandbox.devices,
      groups: sandbox.groups,
      passEnvironment: sandbox.pass_environment,
    },
    hooks: {
      scheduler: hooks.scheduler === 'detect' ? null : hooks.scheduler,
      deadlineMs: hooks.deadline,
      graceMs: hooks.grace,
      drain: hooks.drain,
      own: {
        job: hooks.xce_job,
        attempt: hooks.xce_attempt,
        uid: hooks.xce_submitter,
        nodes: hooks.xce_nodes,
        ends: hooks.xce_end,
      },
    },
    storage,
    environments,
    mpi: { interfaces: mpi.interfaces, agentTimeoutMs: mpi.agent_timeout },
  };
};

/** Each key is the name of a variable; none of those that every sandbox sets itself. */
const decodeEnvironments = (
  sections: readonly Section[],
  { faults, origins, fileName }: Sink,
): readonly EnvironmentSettings[] => {
  const own = sections.filter(({ name }) => isEnvironment(name));
  const extra = own[LIMITS.environmentsMax];
  if (extra !== undefined) {
    const reason = `there are more than ${LIMITS.environmentsMax} [environment] sections`;
    faults.add('config-value', extra.line, reason);
  }
  return own.slice(0, LIMITS.environmentsMax).map(({ name: section, entries }) => {
    const variables = entries.flatMap(({ key, value, line }) => {
      const name = parseSiteVariable(key);
      if ('reason' in name) {
        faults.add('config-value', line, `${titleOf(section)} ${name.reason}`);
        return [];
      }
      origins.push({ section, key, value, from: `${fileName}:${line}` });
      return [{ name: key, value }];
    });
    return { name: section.replace(ENVIRONMENT, '$1'), variables };
  });
};

const decodeStorage = (sections: readonly Section[], sink: Sink): readonly StorageSettings[] => {
  const stores = sections.filter(({ name }) => STORAGE.test(name));
  const extra = stores[LIMITS.leaseRootsMax];
  if (extra !== undefined) {
    sink.faults.add(
      'config-value',
      extra.line,
      `there are more than ${LIMITS.leaseRootsMax} [storage] sections`,
    );
  }
  return stores.slice(0, LIMITS.leaseRootsMax).map((section) => {
    const { path, workspace, local } = decodeSection(section.name, STORAGE_KEYS, section, sink);
    return { name: section.name.replace(STORAGE, '$1'), path, workspace, local: local === 'yes' };
  });
};

/** The node name of the file, else that of the host; a fault (and no name) where the host's is not one. */
const chooseNode = (
  given: Settings['worker']['node'] | undefined,
  hostName: string,
  { faults, origins }: Sink,
): Settings['worker']['node'] | undefined => {
  if (given !== undefined) return given;
  const node = parseNodeName(hostName);
  if (node === undefined) {
    faults.add(
      'config-value',
      0,
      `the host name ${quoteText(hostName)} is not a node name; set [worker] node`,
    );
    return undefined;
  }
  const index = origins.findIndex(({ section, key }) => section === 'worker' && key === 'node');
  origins.splice(index, 1, { section: 'worker', key: 'node', value: node, from: 'host name' });
  return node;
};

/**
 * Decodes a whole file. `fileName` is only for messages and origins; `hostName` is the node name where the file
 * gives none. Throws one XceError, 'config-syntax', 'config-value' or 'pool-range', that tells every fault with
 * its line; `detail.faults` holds them one by one.
 */
export const decodeConfig = (bytes: Buffer, fileName: string, hostName: string): DecodedConfig => {
  const faults = createFaultList();
  const origins: Origin[] = [];
  const sections = readLines(bytes, faults);
  for (const section of sections) {
    checkSectionName(section, faults);
    const table = tableOf(section.name);
    if (table === undefined) continue;
    for (const entry of section.entries) checkKeyName(section.name, table, entry, faults);
  }
  const sink: Sink = { fileName, faults, origins, complete: faults.count === 0 };
  const decode = <S extends SectionName>(name: S): ValuesOf<(typeof KEYS)[S]> =>
    decodeSection(
      name,
      KEYS[name],
      sections.find((section) => section.name === name),
      sink,
    );
  const values: Values = {
    cluster: decode('cluster'),
    pool: decode('pool'),
    directory: decode('directory'),
    lease: decode('lease'),
    nodes: decode('nodes'),
    worker: decode('worker'),
    sandbox: decode('sandbox'),
    hooks: decode('hooks'),
    mpi: decode('mpi'),
  };
  const storage = decodeStorage(sections, sink);
  const environments = decodeEnvironments(sections, sink);
  const node = chooseNode(values.worker.node, hostName, sink);
  if (faults.count > 0 || node === undefined) throw faults.toError(fileName);

  const settings = buildSettings(values, node, storage, environments);
  checkTogether(settings, (section, key) => lineOf(sections, section, key), faults);
  compareWithIni(bytes, sections, faults);
  if (faults.count > 0) throw faults.toError(fileName);
  return { settings, origins };
};

const lineOf = (sections: readonly Section[], name: string, key: string): number => {
  const section = sections.find((candidate) => candidate.name === name);
  return section?.entries.find((entry) => entry.key === key)?.line ?? section?.line ?? 0;
};
