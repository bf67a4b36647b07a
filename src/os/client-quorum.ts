/**
 * Whether a mount of replicated storage stops writing when it has lost the majority of the replicas. A Gluster client
 * shows what it does in a virtual directory of each mount, `.meta`, which is read from its own memory: its translators
 * by name, and for each the type, the options that were set and the state in force.
 */
import { promises } from 'node:fs';
import { join } from 'node:path';
import { errnoOf, XceError } from '../base/errors.ts';
import type { MountPlace } from './mount-table.ts';

/** Whether a client that has lost the majority of the replicas stops writing; `text` says what was found out. */
export type ClientQuorum = { readonly known: boolean; readonly text: string };

/** A translator of the client, as far as it matters: `private` is its state, a `key = value` per line. */
type Translator = {
  readonly name: string;
  readonly type: string;
  readonly state: ReadonlyMap<string, string>;
  readonly options: readonly string[];
};

const TRANSLATORS_MAX = 4096;
/** Fewer copies make a majority that is all of them, or one brick that must never fail. */
const REPLICAS_MIN = 3;

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
    if (!type.startsWith('cluster/') && !type.startsWith('features/')) continue;
    translators.push({
      name,
      type,
      state: parseState(await promises.readFile(join(directory, 'private'), 'utf8')),
      options: await promises.readdir(join(directory, 'options')),
    });
  }
  return translators;
};

const judge = (volume: string, translators: readonly Translator[]): ClientQuorum => {
  const refuse = (text: string): ClientQuorum => ({ known: false, text });
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
  const replicas = Number(set.state.get('child_count'));
  // An arbiter is counted as a replica and keeps no bytes.
  if (!(replicas >= REPLICAS_MIN) || set.options.includes('arbiter-count')) {
    return refuse(`${volume} keeps fewer than ${REPLICAS_MIN} whole copies; use replica ${REPLICAS_MIN}`);
  }
  const kind = set.state.get('quorum-type');
  const count = Number(set.state.get('quorum-count'));
  if (kind === 'auto') return { known: true, text: `quorum auto of ${replicas} replicas` };
  if (kind === 'fixed' && 2 * count > replicas) {
    return { known: true, text: `quorum ${count} of ${replicas} replicas` };
  }
  const found = kind === 'fixed' ? `${count} of ${replicas}` : (kind ?? 'not shown');
  return refuse(`the quorum of ${volume} is ${found}; gluster volume set ${volume} cluster.quorum-type auto`);
};

/** `source` is `HOST:/VOLUME`, or `HOST:/VOLUME/DIRECTORY` for a mount of a part. */
const volumeOf = (source: string): string => /^[^/]*:\/?([^/[\]]+)/.exec(source)?.[1] ?? 'VOLUME';

/**
 * `known` is false wherever a majority could not be shown; `text` then says what is wrong, or what to set. Throws
 * XceError 'os' while the client does not answer, as one that has lost the majority does not.
 */
export const clientQuorum = async ({
  path,
  source,
  type,
}: Pick<MountPlace, 'path' | 'source' | 'type'>): Promise<ClientQuorum> => {
  if (type !== 'fuse.glusterfs') return { known: false, text: `nothing shows it on ${type}` };
  const graph = join(path, '.meta/graphs/active');
  let translators: readonly Translator[];
  try {
    translators = await readTranslators(graph);
  } catch (error) {
    const errno = errnoOf(error);
    if (errno === 'ENOENT' || errno === 'ENOTDIR') {
      return { known: false, text: `there is no ${graph}; mount the volume itself, not a part of a mount` };
    }
    const reason = errno ?? (error instanceof Error ? error.message : String(error));
    throw new XceError('os', `the Gluster client of ${path} does not answer: ${reason}`, {
      at: graph,
      next: 'gluster volume status',
      cause: error,
    });
  }
  return judge(volumeOf(source), translators);
};
