import { describe, expect, test } from 'vitest';
import { explore, type Walk } from './explore.ts';
import { judge, keyOf, RULES, type Rule, type Setting, startOf, successors } from './protocol.ts';

const alone = {
  owners: 1,
  takers: 0,
  readers: 0,
  tears: false,
  lateWritesMax: 0,
  fsyncFails: false,
  empties: false,
  powerCutsMax: 0,
};

/** Small worlds; each lets another kind of trouble happen at every step, and a process be killed at each. */
const WORLDS = {
  'an owner against two takers': { ...alone, takers: 2 },
  'two processes of the owner against a taker': { ...alone, owners: 2, takers: 1 },
  'an owner against a taker, with torn and late writes': {
    ...alone,
    takers: 1,
    tears: true,
    lateWritesMax: 1,
  },
  'two processes of the owner, with torn and late writes': {
    ...alone,
    owners: 2,
    tears: true,
    lateWritesMax: 1,
  },
  'an owner against a taker, with failing fsyncs and a power cut of the storage': {
    ...alone,
    takers: 1,
    fsyncFails: true,
    powerCutsMax: 1,
  },
  'two processes of the owner, with torn writes, failing fsyncs and a power cut of the storage': {
    ...alone,
    owners: 2,
    tears: true,
    fsyncFails: true,
    powerCutsMax: 1,
  },
  'an owner, a taker and a reader': { ...alone, takers: 1, readers: 1 },
  'an owner against two takers that empty what they replace': { ...alone, takers: 2, empties: true },
  'two takers that empty what they replace, and a reader': {
    ...alone,
    owners: 0,
    takers: 2,
    readers: 1,
    empties: true,
  },
  'two takers that empty what they replace, with a power cut of the storage': {
    ...alone,
    owners: 0,
    takers: 2,
    empties: true,
    powerCutsMax: 1,
  },
} as const satisfies Record<string, Omit<Setting, 'without'>>;
type World = keyof typeof WORLDS;

const walk = (world: World, without: Rule | undefined): Walk => {
  const setting: Setting = { ...WORLDS[world], without };
  return explore(startOf(setting), (state) => successors(state, setting), judge, keyOf, 200_000);
};

describe('the epoch protocol', () => {
  test.each(Object.keys(WORLDS) as World[])(
    'loses and doubles nothing: %s',
    { timeout: 120_000 },
    (world) => {
      const { violation, trace, states } = walk(world, undefined);
      expect({ violation, trace }).toEqual({ violation: undefined, trace: [] });
      expect(states).toBeGreaterThan(500);
    },
  );

  const fencing = 'an owner against two takers';
  const power = 'an owner against a taker, with failing fsyncs and a power cut of the storage';
  /** Where the removal of each rule shows. */
  const NEEDED: Record<Rule, World> = {
    'look for a successor after the write': fencing,
    'look for a successor after the take': 'an owner against a taker, with torn and late writes',
    'create the epoch before reading the one below': fencing,
    'move the time of the directory before reading below': fencing,
    'a base must be complete': fencing,
    'names are contiguous': fencing,
    'the token inside decides who took an epoch': fencing,
    'read the record back': 'an owner against a taker, with torn and late writes',
    'checkpoint and complete before the first acknowledgement': fencing,
    'fsync the checkpoint before the first acknowledgement': power,
    'one process of a host at a time': 'two processes of the owner against a taker',
    'an unfinished commit or take and a torn tail take the next epoch':
      'two processes of the owner, with torn and late writes',
    'fsync before the acknowledgement': power,
    'fsync the directory before reading below': power,
    'a failed fsync takes the next epoch': power,
    'a superseded file is emptied only after its successor has acknowledged a record':
      'an owner against two takers that empty what they replace',
    'who meets an emptied file begins again': 'two takers that empty what they replace, and a reader',
  };
  test.each(RULES)('breaks without the rule: %s', { timeout: 120_000 }, (rule) => {
    const { violation, trace } = walk(NEEDED[rule], rule);
    expect(violation).toMatch(/is lost|share a uid|a reader misses|and counts/);
    expect(trace.length).toBeGreaterThan(4);
  });
});
