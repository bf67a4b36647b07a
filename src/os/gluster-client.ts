/**
 * What decides whether replicated storage can keep a log, and no probe sees for certain: that a client which has lost
 * the majority of the replicas stops writing, and that it keeps nothing of what it saw. Old sizes and names show only
 * for about a second, so a slow probe comes too late for them. A Gluster client shows both in a virtual directory of
 * each mount, `.meta`, which is read from its own memory: its command line, and its translators by name, each with the
 * type, the options that were set and the state in force.
 */
import { promises } from 'node:fs';
import { join } from 'node:path';
import { errnoOf, XceError } from '../base/errors.ts';
import type { MountPlace } from './mount-table.ts';

/** Whether the client is fit for a log as it is set and mounted; `text` says what was found out. */
export type ClientVerdict = { readonly fit: boolean; readonly text: string };

/** A translator of the client: the directory that shows it, and its type. */
type Translator = { readonly directory: string; readonly type: string };

/** What is to be known of a set of replicas: `private` is its state, a `key = value` per line. */
type Replicas = { readonly state: ReadonlyMap<string, string>; readonly options: readonly string[] };

const TRANSLATORS_MAX = 4096;
/** Fewer copies make a majority that is all of them, or one brick that must never fail. */
const REPLICAS_MIN = 3;
/** Translators that answer from memory although another client has changed the file, and what takes them out. */
const CACHES: ReadonlyMap<string, string> = new Map([
  ['performance/md-cache', 'performance.stat-prefetch'],
  ['performance/nl-cache', 'performance.nl-cache'],
]);
/** How long the kernel may answer for the client, in seconds; by default it may not for names that are not there. */
const TIMEOUTS = [
  { option: 'attribute-timeout', byDefault: 1 },
  { option: 'entry-timeout', byDefault: 1 },
  { option: 'negative-timeout', byDefault: 0 },
] as const;
const DIRECT_IO = 'direct-io-mode';
/** What the client takes for true. */
const TRUE = ['enable', 'on', 'yes', 'true', '1'];

const parseState = (text: string): ReadonlyMap<string, string> =>
  new Map(
    text.split('\n').flatMap((line) => {
      const [key, value] = line.split(' = ');
      return key === undefined || value === undefined ? [] : [[key.trim(), value.trim()] as const];
    }),
  );

const readTranslators = async (graph: string): Promise<readonly Translator[]> => {
  const names = await promises.readdir(graph);
  if (names.length > TRANSLATORS_MAX) throw new Error(`more than ${TRANSLATORS_MAX} translators`);
  const translators: Translator[] = [];
  for (const name of names) {
    const directory = join(graph, name);
    if (name === 'volfile') continue;
    const type = (await promises.readFile(join(directory, 'type'), 'utf8')).trim();
    translators.push({ directory, type });
  }
  return translators;
};

const readReplicas = async ({ directory }: Translator): Promise<Replicas> => ({
  state: parseState(await promises.readFile(join(directory, 'private'), 'utf8')),
  options: await promises.readdir(join(directory, 'options')),
});

/** The options that the client was started with; of one that is there twice, the last. */
const readOptions = async (meta: string): Promise<ReadonlyMap<string, string>> => {
  const shown: unknown = JSON.parse(await promises.readFile(join(meta, 'cmdline'), 'utf8'));
  if (typeof shown !== 'object' || shown === null || !('Cmdlinestr' in shown)) {
    throw new Error('it shows no command line');
  }
  return new Map(
    String(shown.Cmdlinestr)
      .split(' ')
      .flatMap((word) => {
        const [, option, value] = /^--([a-z-]+)=(.*)$/.exec(word) ?? [];
        return option === undefined || value === undefined ? [] : [[option, value] as const];
      }),
  );
};

/** Why a client with these may show what is no longer so; undefined when it may not. */
const findCache = (
  volume: string,
  translators: readonly Translator[],
  options: ReadonlyMap<string, string>,
): string | undefined => {
  for (const { type } of translators) {
    const setting = CACHES.get(type);
    if (setting !== undefined) {
      return `${volume} has ${setting} on; gluster volume set ${volume} ${setting} off`;
    }
  }
  for (const { option, byDefault } of TIMEOUTS) {
    if (Number(options.get(option) ?? byDefault) !== 0) return `mount it with ${option}=0`;
  }
  return TRUE.includes(options.get(DIRECT_IO) ?? '') ? undefined : `mount it with ${DIRECT_IO}=enable`;
};

const judgeQuorum = async (volume: string, translators: readonly Translator[]): Promise<ClientVerdict> => {
  const refuse = (text: string): ClientVerdict => ({ fit: false, text: `no proven client quorum: ${text}` });
  const sharded = translators.find(({ type }) => type === 'features/shard');
  if (sharded !== undefined) {
    return refuse(`${volume} cuts files into shards; use a volume without features.shard`);
  }
  const [set, ...others] = translators.filter(
    ({ type }) => type.startsWith('cluster/') && type !== 'cluster/distribute',
  );
  if (set?.type !== 'cluster/replicate') {
    return refuse(`${volume} is not replicated; use a volume of type replica ${REPLICAS_MIN}`);
  }
  if (others.length > 0) {
    return refuse(`${volume} is spread over several replica sets; use a volume with one of them`);
  }
  const { state, options } = await readReplicas(set);
  const replicas = Number(state.get('child_count'));
  // An arbiter is counted as a replica and keeps no bytes.
  if (!(replicas >= REPLICAS_MIN) || options.includes('arbiter-count')) {
    return refuse(`${volume} keeps fewer than ${REPLICAS_MIN} whole copies; use replica ${REPLICAS_MIN}`);
  }
  const kind = state.get('quorum-type');
  const count = Number(state.get('quorum-count'));
  if (kind === 'auto') return { fit: true, text: `quorum auto of ${replicas} replicas` };
  if (kind === 'fixed' && 2 * count > replicas) {
    return { fit: true, text: `quorum ${count} of ${replicas} replicas` };
  }
  const found = kind === 'fixed' ? `${count} of ${replicas}` : (kind ?? 'not shown');
  return refuse(`the quorum of ${volume} is ${found}; gluster volume set ${volume} cluster.quorum-type auto`);
};

/** `source` is `HOST:/VOLUME`, or `HOST:/VOLUME/DIRECTORY` for a mount of a part. */
const volumeOf = (source: string): string => /^[^/]*:\/?([^/[\]]+)/.exec(source)?.[1] ?? 'VOLUME';

const judgeVolume = async (volume: string, meta: string, graph: string): Promise<ClientVerdict> => {
  const translators = await readTranslators(graph);
  const options = await readOptions(meta);
  const quorum = await judgeQuorum(volume, translators);
  if (!quorum.fit) return quorum;
  const cache = findCache(volume, translators, options);
  if (cache === undefined) return quorum;
  return { fit: false, text: `its client shows what was so before others changed it: ${cache}` };
};

/**
 * `fit` is false wherever it could not be shown that a client stops writing without the majority and shows what is so
 * now; `text` then says what is wrong, or what to set. Throws XceError 'os' while the client does not answer, as one
 * that has lost the majority does not.
 */
export const judgeClient = async ({
  path,
  source,
  type,
}: Pick<MountPlace, 'path' | 'source' | 'type'>): Promise<ClientVerdict> => {
  if (type !== 'fuse.glusterfs') return { fit: false, text: `nothing shows the client quorum of ${type}` };
  const meta = join(path, '.meta');
  const graph = join(meta, 'graphs/active');
  try {
    return await judgeVolume(volumeOf(source), meta, graph);
  } catch (error) {
    const errno = errnoOf(error);
    if (errno === 'ENOENT' || errno === 'ENOTDIR') {
      return { fit: false, text: `there is no ${graph}; mount the volume itself, not a part of a mount` };
    }
    const reason = errno ?? (error instanceof Error ? error.message : String(error));
    throw new XceError('os', `the Gluster client of ${path} does not answer: ${reason}`, {
      at: meta,
      next: 'gluster volume status',
      cause: error,
    });
  }
};
