/**
 * The probe: who is told to do what, and what must come of it. xce-sandbox-log(5), THE PROBE. Nothing here touches
 * a file; parties do, on one host or on two.
 */
import { asXceError, XceError } from '../base/errors.ts';
import type { ProbeAction, ProbeParty, ProbeProcess, ProbeResult } from './probe-action.ts';

/** In both directions together: a host is the looker in every other one. */
export const LOOK_ROUNDS = 1000;
const PAIR_ROUNDS = 100;
const ROUNDS_PER_UPDATE = 100;
/** A lock that was given back, or whose holder was killed, must be free within this. */
const FREED_MS_MAX = 5000;

/** Is told how far the probe is. */
export type ProbeUpdate = (text: string) => void;

const unkept = (problem: string): XceError => new XceError('storage-unfit', problem);

function expect(condition: boolean, problem: string): asserts condition {
  if (!condition) throw unkept(problem);
}

/** Names the promise, and the round, that a failure belongs to; its code stays. */
const during = async <T>(promise: string, round: number | undefined, work: () => Promise<T>): Promise<T> => {
  try {
    return await work();
  } catch (error) {
    const { code, message, facts } = asXceError(error);
    const where = round === undefined ? promise : `${promise}, round ${round}`;
    throw new XceError(code, `${where}: ${message}`, {
      ...facts,
      detail: { ...facts.detail, promise, ...(round === undefined ? {} : { round }) },
      cause: error,
    });
  }
};

/** The same for each round, with a word on the way now and then. */
const inRounds = async (
  promise: string,
  rounds: number,
  update: ProbeUpdate,
  work: (round: number) => Promise<void>,
): Promise<void> => {
  for (let round = 1; round <= rounds; round++) {
    await during(promise, round, () => work(round));
    if (round % ROUNDS_PER_UPDATE === 0) update(`${promise}: ${round} of ${rounds} rounds`);
  }
};

const one = async (process: ProbeProcess, action: ProbeAction): Promise<ProbeResult> => {
  const [result] = await process.perform([action]);
  if (result === undefined) throw new XceError('protocol', `there is no answer to ${action.act}`);
  return result;
};

/** Does all of it; each must be done, and the text of the last one that reads comes back. */
const must = async (process: ProbeProcess, actions: readonly ProbeAction[]): Promise<string | null> => {
  const results = await process.perform(actions);
  for (const [index, action] of actions.entries()) {
    expect(results[index]?.done === true, `${action.act} did not do what it must`);
  }
  return results.findLast(({ text }) => text !== null)?.text ?? null;
};

/** Both at the same time; a failure comes only when neither is at work any more. */
const together = async <T>(first: Promise<T>, second: Promise<T>): Promise<readonly [T, T]> => {
  await Promise.allSettled([first, second]);
  return await Promise.all([first, second]);
};

/** A process, and what it is called in a refusal. */
type Holder = { readonly is: string; readonly process: ProbeProcess };

const firstOf = ({ node, first }: ProbeParty): Holder => ({ is: node, process: first });
const secondOf = ({ node, second }: ProbeParty): Holder => ({
  is: `a second process of ${node}`,
  process: second,
});

/** While one has the lock the other does not get it; it does once `release` has been done. */
const excludes = async (
  name: string,
  holder: Holder,
  other: Holder,
  release: () => Promise<unknown>,
): Promise<void> => {
  await must(holder.process, [
    { act: 'open', name },
    { act: 'lock', name, waitMs: FREED_MS_MAX },
  ]);
  await must(other.process, [{ act: 'open', name }]);
  const { done } = await one(other.process, { act: 'lock', name, waitMs: 0 });
  expect(!done, `${other.is} got a lock that ${holder.is} held`);
  await release();
  const freed = await one(other.process, { act: 'lock', name, waitMs: FREED_MS_MAX });
  expect(freed.done, `${other.is} did not get a lock that ${holder.is} had no longer`);
  await must(other.process, [{ act: 'unlock', name }]);
};

/** Held and given back, held and given back the other way round, held and killed. */
const tryLocks = async (name: string, holder: ProbeParty, other: Holder): Promise<void> => {
  const { first, second } = holder;
  if (other.process !== first) {
    await excludes(name, firstOf(holder), other, () => must(first, [{ act: 'unlock', name }]));
  }
  await excludes(name, secondOf(holder), other, () => must(second, [{ act: 'unlock', name }]));
  if (other.process === first) {
    await excludes(name, other, secondOf(holder), () => must(first, [{ act: 'unlock', name }]));
  }
  await excludes(name, secondOf(holder), other, () => second.kill());
};

/** The promises that one host can try. `mark` tells its files from those of another host. */
const ONE_HOST: readonly {
  readonly promise: string;
  readonly run: (party: ProbeParty, mark: string) => Promise<void>;
}[] = [
  {
    promise: 'exclusive create',
    run: async ({ first }, mark) => {
      await must(first, [{ act: 'create', name: mark, text: mark }]);
      const again = await one(first, { act: 'create', name: mark, text: 'again' });
      expect(!again.done, 'a file that is there was made again');
    },
  },
  {
    promise: 'fsync',
    run: async ({ first }, mark) => {
      const text = 'what was fsynced is read back';
      await must(first, [
        { act: 'open', name: mark },
        { act: 'append', name: mark, text },
      ]);
      const back = await must(first, [{ act: 'read', name: mark, from: mark.length }]);
      expect(back === text, 'what was fsynced is not read back');
    },
  },
  {
    promise: 'exclusive link',
    run: async ({ first }, mark) => {
      const [name, to] = [`${mark}.new`, `${mark}.link`];
      await must(first, [
        { act: 'create', name, text: 'linked' },
        { act: 'link', name, to },
      ]);
      expect((await must(first, [{ act: 'read', name: to, from: 0 }])) === 'linked', 'it is another file');
      const again = await one(first, { act: 'link', name: mark, to });
      expect(!again.done, 'a name that is there was linked again');
    },
  },
  {
    promise: 'rename',
    run: async ({ first }, mark) => {
      const [name, to] = [`${mark}.new`, `${mark}.renamed`];
      await must(first, [{ act: 'rename', name, to }]);
      expect((await must(first, [{ act: 'read', name: to, from: 0 }])) === 'linked', 'it is another file');
      expect(!(await one(first, { act: 'look', name })).done, 'the old name is still there');
    },
  },
  {
    promise: 'fsync of the directory',
    run: async ({ first }) => {
      await must(first, [{ act: 'sync-directory' }]);
    },
  },
  {
    promise: 'locks between processes',
    run: (party, mark) => tryLocks(mark, party, firstOf(party)),
  },
];

/** What one host can show. Returns the names of the promises; throws for the first that is not kept. */
export const probeOneHost = async (party: ProbeParty, mark: string): Promise<readonly string[]> => {
  for (const { promise, run } of ONE_HOST) await during(promise, undefined, () => run(party, mark));
  return ONE_HOST.map(({ promise }) => promise);
};

type Pair = { readonly maker: ProbeParty; readonly looker: ProbeParty; readonly mark: string };

/** Each in either part. */
const bothWays = (here: ProbeParty, there: ProbeParty): readonly Pair[] => [
  { maker: here, looker: there, mark: 'a' },
  { maker: there, looker: here, mark: 'b' },
];

/** Names are seen by others once this has been done. */
const SETTLE = { act: 'settle', name: 'settle' } as const;

/** Both make one name at the same time: one of them has, and both read its text. */
const race = async (
  name: string,
  [here, there]: readonly [ProbeParty, ProbeParty],
  actionOf: (text: string) => ProbeAction,
): Promise<void> => {
  const [ours, theirs] = await together(one(here.first, actionOf('a')), one(there.first, actionOf('b')));
  expect(ours.done || theirs.done, `neither host made ${name}`);
  expect(!(ours.done && theirs.done), `both hosts made ${name}`);
  await must(here.first, [SETTLE]);
  const winner = ours.done ? 'a' : 'b';
  for (const { node, first } of [here, there]) {
    const { text } = await one(first, { act: 'read', name, from: 0 });
    expect(text === winner, `${node} reads ${JSON.stringify(text)} in ${name}, made with "${winner}"`);
  }
};

const tryCreate = (here: ProbeParty, there: ProbeParty) => async (round: number) => {
  const name = `create.${round}`;
  await race(name, [here, there], (text) => ({ act: 'create', name, text }));
  await must(here.first, [{ act: 'remove', name }]);
};

const tryLink = (here: ProbeParty, there: ProbeParty) => async (round: number) => {
  const name = `link.${round}`;
  const prepared = (mark: string): string => `${name}.${mark}`;
  await must(here.first, [{ act: 'create', name: prepared('a'), text: 'a' }]);
  await must(there.first, [{ act: 'create', name: prepared('b'), text: 'b' }]);
  await race(name, [here, there], (text) => ({ act: 'link', name: prepared(text), to: name }));
  await must(here.first, [
    { act: 'remove', name },
    { act: 'remove', name: prepared('a') },
  ]);
  await must(there.first, [{ act: 'remove', name: prepared('b') }]);
};

const requireAbsent = async ({ node, first }: ProbeParty, name: string): Promise<void> => {
  expect(!(await one(first, { act: 'look', name })).done, `${node} sees ${name} before it is made`);
};

const tryRename = (pairs: readonly Pair[]) => async (round: number) => {
  for (const { maker, looker, mark } of pairs) {
    const [name, to] = [`rename.${round}.${mark}.new`, `rename.${round}.${mark}`];
    await requireAbsent(looker, to);
    await must(maker.first, [
      { act: 'create', name, text: to },
      { act: 'rename', name, to },
      SETTLE,
      { act: 'sync-directory' },
    ]);
    const [shown, read] = await looker.first.perform([
      { act: 'look', name: to },
      { act: 'read', name: to, from: 0 },
    ]);
    expect(shown?.done === true, `${looker.node} does not see what ${maker.node} has renamed`);
    expect(read?.text === to, `${looker.node} cannot read what ${maker.node} has renamed`);
    await must(maker.first, [{ act: 'remove', name: to }]);
  }
};

const SIZE = 'size';

const trySize = (pairs: readonly Pair[]) => {
  let length = 0;
  return async (round: number) => {
    for (const { maker, looker, mark } of pairs) {
      const name = SIZE;
      const lock = { act: 'lock', name, waitMs: FREED_MS_MAX } as const;
      const text = `${round}${mark} under the lock\n`;
      await must(maker.first, [lock, { act: 'append', name, text }, { act: 'unlock', name }]);
      const back = await must(looker.first, [
        lock,
        { act: 'tail', name, from: length },
        { act: 'unlock', name },
      ]);
      expect(
        back === text,
        `${looker.node} reads ${back?.length ?? 0} of ${text.length} bytes that ${maker.node} has appended`,
      );
      length += text.length;
    }
  };
};

/** One direction of looks and fresh reads, from round to round. */
class Sight {
  readonly #pair: Pair;
  readonly #tail: string;
  #length = 0;
  #made = 0;

  constructor(pair: Pair) {
    this.#pair = pair;
    this.#tail = `tail.${pair.mark}`;
  }

  #name(number: number): string {
    return `look.${number}.${this.#pair.mark}`;
  }

  /** Fills the caches of the looker with what is to become old. */
  async begin(): Promise<void> {
    const { maker, looker } = this.#pair;
    const name = this.#tail;
    await must(maker.first, [{ act: 'create', name, text: '' }, { act: 'open', name }, SETTLE]);
    await must(looker.first, [{ act: 'read', name, from: 0 }]);
    await requireAbsent(looker, this.#name(1));
  }

  async round(): Promise<void> {
    const { maker, looker } = this.#pair;
    this.#made += 1;
    const made = this.#made;
    const name = this.#name(made);
    const text = `${name} was fsynced before it was looked for\n`;
    await must(maker.first, [
      { act: 'append', name: this.#tail, text },
      { act: 'create', name: `${name}.new`, text: name },
      { act: 'link', name: `${name}.new`, to: name },
      { act: 'settle', name: `${name}.new` },
      { act: 'sync-directory' },
      ...(made > 1 ? [{ act: 'remove', name: this.#name(made - 1) } as const] : []),
    ]);
    // The next name is looked for at once, so that the looker has long known that it is not there.
    const [shown, linked, tail, early] = await looker.first.perform([
      { act: 'look', name },
      { act: 'read', name, from: 0 },
      { act: 'read', name: this.#tail, from: this.#length },
      { act: 'look', name: this.#name(made + 1) },
    ]);
    expect(shown?.done === true, `${looker.node} does not see what ${maker.node} has made`);
    expect(linked?.text === name, `${looker.node} cannot read what ${maker.node} has made`);
    expect(
      tail?.text === text,
      `${looker.node} reads ${tail?.text?.length ?? 0} of ${text.length} bytes that ${maker.node} has fsynced`,
    );
    expect(early?.done === false, `${looker.node} sees a name that nobody has made`);
    this.#length += text.length;
  }
}

const LOOK = 'look';
const FRESH_READ = 'fresh read';

/** What two hosts show. Returns the names of the promises; throws for the first that is not kept. */
export const probeTwoHosts = async (
  here: ProbeParty,
  there: ProbeParty,
  update: ProbeUpdate,
): Promise<readonly string[]> => {
  const pairs = bothWays(here, there);
  await during('one directory', undefined, async () => {
    await must(here.first, [{ act: 'create', name: 'same', text: 'same' }, SETTLE]);
    const { text } = await one(there.first, { act: 'read', name: 'same', from: 0 });
    expect(text === 'same', `${there.node} does not see the directory that ${here.node} sees`);
  });
  const kept = [...(await probeOneHost(here, 'a'))];
  await probeOneHost(there, 'b');
  update('promises of one host: kept on both');

  const rounds: readonly [string, (round: number) => Promise<void>][] = [
    ['exclusive create between hosts', tryCreate(here, there)],
    ['exclusive link between hosts', tryLink(here, there)],
    ['rename between hosts', tryRename(pairs)],
  ];
  for (const [promise, work] of rounds) {
    await inRounds(promise, PAIR_ROUNDS, update, work);
    kept.push(promise);
  }

  const locks = 'locks between hosts';
  for (const { maker, looker, mark } of pairs) {
    await during(locks, undefined, () => tryLocks(mark, maker, firstOf(looker)));
  }
  kept.push(locks);

  const size = 'size under the lock';
  await during(size, undefined, async () => {
    await must(here.first, [{ act: 'create', name: SIZE, text: '' }, SETTLE]);
    for (const { first } of [here, there]) await must(first, [{ act: 'open', name: SIZE }]);
  });
  await inRounds(size, PAIR_ROUNDS, update, trySize(pairs));
  kept.push(size);

  const sights = pairs.map((pair) => new Sight(pair));
  for (const sight of sights) await during(LOOK, undefined, () => sight.begin());
  await inRounds(`${LOOK} and ${FRESH_READ}`, LOOK_ROUNDS, update, async (round) => {
    await sights[round % sights.length]?.round();
  });
  // A file that is open at one host and removed by the other would leave its remains on some storage.
  for (const { first, second } of [here, there]) {
    await second.kill();
    await must(first, [{ act: 'close' }]);
  }
  return [...kept, LOOK, FRESH_READ];
};
