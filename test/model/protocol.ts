/**
 * The epoch protocol of xce-sandbox-log(5) as data: every step that touches the storage or a lock is one
 * transition, and each rule of the page is a switch. Assumed of the storage: one name is given to one inode,
 * a fresh look-up sees every name once the time of its directory has moved, and what fsync acknowledged survives.
 * Not assumed: that it sees the name before, that writes land whole or at once, that a killed process's last write is
 * over, that an fsync after a failed one means anything, or that there is a lock between hosts.
 */

export const RULES = [
  'look for a successor after the write',
  'look for a successor after the take',
  'create the epoch before reading the one below',
  'move the time of the directory before reading below',
  'a base must be complete',
  'names are contiguous',
  'the token inside decides who took an epoch',
  'read the record back',
  'checkpoint and complete before the first acknowledgement',
  'fsync the checkpoint before the first acknowledgement',
  'one process of a host at a time',
  'an unfinished commit or take and a torn tail take the next epoch',
  'fsync before the acknowledgement',
  'fsync the directory before reading below',
  'a failed fsync takes the next epoch',
  'a superseded file is emptied only after its successor has acknowledged a record',
  'who meets an emptied file begins again',
] as const;
export type Rule = (typeof RULES)[number];

/** A record. Every process commits one, and its name is the record's. */
type Lease = { readonly uid: number; readonly by: string };
type Cell = Lease & { readonly whole: boolean; readonly durable: boolean; readonly lost: boolean };
type Inode = {
  readonly epoch: number;
  readonly owner: string;
  /** The time of the directory has moved since the link: everyone who looks sees the name. */
  readonly settled: boolean;
  readonly linkDurable: boolean;
  readonly complete: boolean;
  readonly completeDurable: boolean;
  readonly emptied: boolean;
  /** The checkpoint's leases, then the records behind it. */
  readonly cells: readonly Cell[];
};

type Step =
  | 'enter' // look for the newest epoch, lock
  | 'decide' // replay, choose
  | 'write'
  | 'fsync'
  | 'read back'
  | 'look' // and acknowledge
  | 'choose' // the number of the epoch to take
  | 'create'
  | 'settle'
  | 'sync directory'
  | 'find base'
  | 'read base'
  | 'complete'
  | 'sync complete'
  | 'look after take'
  | 'late complete' // only without the rule on checkpoints
  | 'empty' // a file below, behind an acknowledgement
  | 'list' // a reader
  | 'end';

type Process = {
  readonly name: string;
  readonly host: string;
  readonly step: Step;
  /** Number of the epoch this process works in or takes. */
  readonly epoch: number;
  readonly inode: number;
  /** Number of the epoch that is looked at, or read, as a base. */
  readonly base: number;
  readonly known: readonly Lease[];
  readonly mine: Lease | undefined;
  readonly index: number;
  /** The epoch is being taken to learn what became of `mine`. */
  readonly remedy: boolean;
  /** Readers: what had been acknowledged when it began. */
  readonly due: readonly Lease[] | undefined;
};

export type State = {
  readonly inodes: readonly Inode[];
  /** Index of the inode of each epoch; -1 where there is no name. Index 0 is epoch 1. */
  readonly names: readonly number[];
  readonly processes: readonly Process[];
  /** 'host/epoch' of held token locks, with the holder; and of token files that say busy. */
  readonly locks: readonly (readonly [string, string])[];
  readonly busy: readonly string[];
  /** Writes of killed processes that may still land. */
  readonly flights: readonly { readonly inode: number; readonly index: number; readonly lease: Lease }[];
  readonly acknowledged: readonly Lease[];
  readonly denied: readonly string[];
  readonly powerCuts: number;
  readonly lateWrites: number;
  readonly broken: string | undefined;
};

const writeLeases = (leases: readonly Lease[]): string => leases.map(({ uid, by }) => `${by}${uid}`).join();

/** The same text for the same state, and for no other. */
export const keyOf = (state: State): string => {
  let key = `${state.names.join()};${state.powerCuts};${state.lateWrites};${state.broken ?? ''};${writeLeases(state.acknowledged)}`;
  for (const [name, holder] of state.locks) key += `;${name}=${holder}`;
  key += `;${state.busy.join()};${state.denied.join()}`;
  for (const flight of state.flights)
    key += `;${flight.inode}@${flight.index}${flight.lease.by}${flight.lease.uid}`;
  for (const inode of state.inodes) {
    key += `|${inode.epoch}${inode.owner}${+inode.settled}${+inode.linkDurable}${+inode.complete}${+inode.completeDurable}${+inode.emptied}`;
    for (const cell of inode.cells) {
      key += `,${cell.by}${cell.uid}${+cell.whole}${+cell.durable}${+cell.lost}`;
    }
  }
  for (const process of state.processes) {
    key += `|${process.step}${process.epoch},${process.inode},${process.base},${process.index}${+process.remedy}`;
    key += `${writeLeases(process.known)};${process.mine?.uid ?? ''};${process.due === undefined ? '' : writeLeases(process.due)}`;
  }
  return key;
};

export type Setting = {
  readonly without: Rule | undefined;
  readonly owners: number;
  readonly takers: number;
  readonly readers: number;
  /** Writes may land torn, with or without an error. */
  readonly tears: boolean;
  /** How many writes may land later than their call ended, by an error or by the death of the process. */
  readonly lateWritesMax: number;
  /** Fsync may fail. */
  readonly fsyncFails: boolean;
  /** An owner that has acknowledged a record may empty any one file below its own. */
  readonly empties: boolean;
  /** How often the storage may lose everything that was not fsynced. */
  readonly powerCutsMax: number;
};

const newProcess = (name: string, host: string, step: Step): Process => ({
  name,
  host,
  step,
  epoch: 0,
  inode: -1,
  base: -1,
  known: [],
  mine: undefined,
  index: -1,
  remedy: false,
  due: undefined,
});

/** Epoch 1 is complete and empty and belongs to host A. Owners are processes of A; every taker has its own host. */
export const startOf = (setting: Setting): State => {
  const processes: Process[] = [];
  for (let i = 0; i < setting.owners; i++) processes.push(newProcess(`a${i}`, 'A', 'enter'));
  for (let i = 0; i < setting.takers; i++) processes.push(newProcess(`t${i}`, `T${i}`, 'choose'));
  for (let i = 0; i < setting.readers; i++) processes.push(newProcess(`r${i}`, `R${i}`, 'list'));
  return {
    inodes: [
      {
        epoch: 1,
        owner: 'A',
        settled: true,
        linkDurable: true,
        complete: true,
        completeDurable: true,
        emptied: false,
        cells: [],
      },
    ],
    names: [0],
    processes,
    locks: [],
    busy: [],
    flights: [],
    acknowledged: [],
    denied: [],
    powerCuts: 0,
    lateWrites: 0,
    broken: undefined,
  };
};

const replay = (inode: Inode): readonly Lease[] => {
  const end = inode.cells.findIndex((cell) => !cell.whole);
  const cells = end < 0 ? inode.cells : inode.cells.slice(0, end);
  return cells.map(({ uid, by }) => ({ uid, by }));
};

const newestOf = (state: State): number => state.names.findLastIndex((inode) => inode >= 0) + 1;
const inodeAt = (state: State, index: number): Inode => {
  const inode = state.inodes[index];
  if (inode === undefined) throw new Error(`no inode ${index}`);
  return inode;
};

/** What a look may take for the newest epoch: names that are not settled may be hidden from it. */
const newestInSight = (state: State): readonly number[] => {
  const sights: number[] = [];
  for (let epoch = newestOf(state); epoch > 0; epoch--) {
    const index = state.names[epoch - 1] ?? -1;
    if (index < 0) continue;
    sights.push(epoch);
    if (inodeAt(state, index).settled) break;
  }
  return sights;
};

const newestComplete = (state: State): Inode | undefined =>
  state.names
    .filter((index) => index >= 0)
    .map((index) => inodeAt(state, index))
    .findLast((inode) => inode.complete);

/** What is wrong with a state, or undefined. */
export const judge = (state: State): string | undefined => {
  if (state.broken !== undefined) return state.broken;
  const uids = new Set(state.acknowledged.map((lease) => lease.uid));
  if (uids.size < state.acknowledged.length) return 'two acknowledged leases share a uid';
  const base = newestComplete(state);
  const names = base === undefined ? [] : replay(base).map((lease) => lease.by);
  const lost = state.acknowledged.find((lease) => !names.includes(lease.by));
  if (lost !== undefined) return `the acknowledged record of ${lost.by} is lost`;
  const back = state.denied.find((name) => names.includes(name));
  if (back !== undefined) return `the record of ${back} was reported as not written, and counts`;
  return undefined;
};

const withProcess = (state: State, at: number, change: Partial<Process>): State => ({
  ...state,
  processes: state.processes.map((process, i) => (i === at ? { ...process, ...change } : process)),
});
const withInode = (state: State, at: number, change: Partial<Inode>): State => ({
  ...state,
  inodes: state.inodes.map((inode, i) => (i === at ? { ...inode, ...change } : inode)),
});

const lockName = (process: Process): string => `${process.host}/${process.epoch}`;

/** Frees every lock of a process; the kernel does this at its death as well. */
const unlocked = (state: State, name: string): State => ({
  ...state,
  locks: state.locks.filter(([, holder]) => holder !== name),
});

const ended = (state: State, at: number, name: string): State =>
  withProcess(unlocked(state, name), at, {
    step: 'end',
    known: [],
    due: undefined,
    base: -1,
    mine: undefined,
    index: -1,
    remedy: false,
    inode: -1,
    epoch: 0,
  });

const hole: Cell = { uid: 0, by: '', whole: false, durable: false, lost: false };

/** Writes at an offset that the client chose, as network file systems do for O_APPEND, over whatever is there. */
const put = (inode: Inode, index: number, lease: Lease, whole: boolean): readonly Cell[] => {
  const cells = inode.cells.slice();
  while (cells.length < index) cells.push(hole);
  cells[index] = { ...lease, whole, durable: false, lost: false };
  return cells;
};

const synced = (inode: Inode): Partial<Inode> => ({
  cells: inode.cells.map((cell) => (cell.lost ? cell : { ...cell, durable: true })),
});

const acknowledge = (state: State, process: Process, at: number): State => {
  const { mine } = process;
  if (mine === undefined) throw new Error('nothing to acknowledge');
  const next = {
    ...state,
    acknowledged: [...state.acknowledged, mine],
    busy: state.busy.filter((name) => name !== lockName(process)),
  };
  return next.processes.some((other) => other.step === 'late complete' && other.name === process.name)
    ? next
    : ended(next, at, process.name);
};

const NOTHING: Partial<Inode> = { emptied: true, complete: false, completeDurable: false, cells: [] };

/** What happens, and the state it leads to. */
export type Move = readonly [string, State];

/** All states one step of one process, or of its surroundings, leads to. */
export const successors = (state: State, setting: Setting): readonly Move[] => {
  const keeps = (rule: Rule): boolean => setting.without !== rule;
  /** Where nothing unfsynced can be lost, an fsync changes nothing, and its step is left out. */
  const fsyncs = setting.fsyncFails || setting.powerCutsMax > 0;
  const chooseEpoch: Partial<Process> = { step: 'choose', known: [], base: -1 };

  /** Whether a look sees that there is an epoch behind this one; both, where that is left to chance. */
  const looks = (epoch: number): readonly boolean[] => {
    if ((state.names[epoch] ?? -1) < 0) return [false];
    return newestInSight(state).includes(epoch) ? [true, false] : [true];
  };
  const afterCreate: Step = keeps('create the epoch before reading the one below') ? 'find base' : 'complete';
  const afterSettle: Step =
    fsyncs && keeps('fsync the directory before reading below') ? 'sync directory' : afterCreate;

  const movesOf = (process: Process, at: number): readonly Move[] => {
    const move = (what: string, next: State): Move => [`${process.name}: ${what}`, next];
    const go = (what: string, next: State): readonly Move[] => [move(what, next)];
    const to = (change: Partial<Process>): State => withProcess(state, at, change);
    const remedy = (from: State): State =>
      withProcess(from, at, { ...chooseEpoch, remedy: true, index: -1, inode: -1 });

    switch (process.step) {
      case 'end':
        return [];
      case 'enter':
        return newestInSight(state).flatMap((epoch) => {
          const index = state.names[epoch - 1] ?? -1;
          const inode = inodeAt(state, index);
          if (inode.owner !== process.host) return go('is fenced', ended(state, at, process.name));
          const key = `${process.host}/${epoch}`;
          const held = state.locks.some(([name]) => name === key);
          if (held && keeps('one process of a host at a time')) return [];
          const next = withProcess({ ...state, locks: [...state.locks, [key, process.name]] }, at, {
            epoch,
            inode: index,
          });
          const unfinished = state.busy.includes(key) || inode.cells.some((cell) => !cell.whole);
          if (unfinished && keeps('an unfinished commit or take and a torn tail take the next epoch')) {
            return go('finds something unfinished', withProcess(next, at, chooseEpoch));
          }
          if (!inode.complete) return go('finds no checkpoint', ended(next, at, process.name));
          return go('enters', withProcess(next, at, { step: 'decide' }));
        });
      case 'decide': {
        const inode = inodeAt(state, process.inode);
        const known = inode.complete ? replay(inode) : process.known;
        const uid = [1, 2, 3, 4, 5, 6, 7, 8].find((free) => !known.some((lease) => lease.uid === free)) ?? 9;
        return go(
          'decides',
          to({ step: 'write', mine: { uid, by: process.name }, index: inode.cells.length, known: [] }),
        );
      }
      case 'write': {
        const moves: Move[] = [];
        const { mine, index } = process;
        if (mine === undefined) throw new Error('nothing to write');
        const inode = inodeAt(state, process.inode);
        const key = lockName(process);
        const marked = { ...state, busy: state.busy.includes(key) ? state.busy : [...state.busy, key] };
        const written = withInode(marked, process.inode, { cells: put(inode, index, mine, true) });
        const check = keeps('read the record back') ? 'read back' : 'look';
        const then = fsyncs && keeps('fsync before the acknowledgement') ? 'fsync' : check;
        moves.push(move('writes', withProcess(written, at, { step: then })));
        if (setting.tears) {
          const torn = withInode(marked, process.inode, { cells: put(inode, index, mine, false) });
          moves.push(move('writes a part and is killed', ended(torn, at, process.name)));
          moves.push(move('writes a part and gets an error', remedy(torn)));
          moves.push(move('writes a part unnoticed', withProcess(torn, at, { step: then })));
        }
        if (state.lateWrites < setting.lateWritesMax) {
          const flights = [...state.flights, { inode: process.inode, index, lease: mine }];
          const flying = { ...marked, flights, lateWrites: state.lateWrites + 1 };
          moves.push(move('gets an error with its write on the way', remedy(flying)));
          moves.push(move('is killed with its write on the way', ended(flying, at, process.name)));
        }
        return moves;
      }
      case 'fsync': {
        const moves: Move[] = [];
        const inode = inodeAt(state, process.inode);
        const step = keeps('read the record back') ? 'read back' : 'look';
        moves.push(move('fsyncs', withProcess(withInode(state, process.inode, synced(inode)), at, { step })));
        if (setting.fsyncFails) {
          const lost = withInode(state, process.inode, {
            cells: inode.cells.map((cell) => (cell.durable ? cell : { ...cell, lost: true })),
          });
          moves.push(
            move(
              'gets an error from fsync',
              keeps('a failed fsync takes the next epoch') ? remedy(lost) : lost,
            ),
          );
        }
        return moves;
      }
      case 'read back': {
        const cell = inodeAt(state, process.inode).cells[process.index];
        const there = cell?.whole === true && cell.by === process.name;
        return go('reads back', there ? to({ step: 'look' }) : remedy(state));
      }
      case 'look': {
        const isLate =
          !keeps('checkpoint and complete before the first acknowledgement') &&
          !inodeAt(state, process.inode).complete;
        const acknowledged = acknowledge(isLate ? to({ step: 'late complete' }) : state, process, at);
        const empties = setting.empties && process.epoch > 1;
        return looks(process.epoch).map((successor) =>
          successor && keeps('look for a successor after the write')
            ? move('sees a successor: outcome unknown', ended(state, at, process.name))
            : move(
                'acknowledges',
                empties
                  ? withProcess(acknowledged, at, { step: 'empty', epoch: process.epoch })
                  : acknowledged,
              ),
        );
      }
      case 'empty': {
        const below = state.names.slice(0, process.epoch - 1);
        const full = below.filter((index) => index >= 0 && !inodeAt(state, index).emptied);
        return [
          move('leaves the files below', ended(state, at, process.name)),
          ...full.map((index) =>
            move(
              `empties ${inodeAt(state, index).epoch}`,
              ended(withInode(state, index, NOTHING), at, process.name),
            ),
          ),
        ];
      }
      case 'choose': {
        const moves: Move[] = [];
        const number = newestOf(state) + 1;
        const step = keeps('create the epoch before reading the one below') ? 'create' : 'find base';
        moves.push(move(`chooses ${number}`, to({ step, epoch: number })));
        if (!keeps('names are contiguous')) {
          moves.push(move(`chooses ${number + 1}`, to({ step, epoch: number + 1 })));
        }
        return moves;
      }
      case 'create': {
        const existing = state.names[process.epoch - 1] ?? -1;
        if (existing >= 0) {
          if (keeps('the token inside decides who took an epoch') || process.remedy) {
            return go('loses the race', ended(state, at, process.name));
          }
          return go('takes the epoch of another for its own', to({ step: 'decide', inode: existing }));
        }
        const names = state.names.slice();
        while (names.length < process.epoch) names.push(-1);
        names[process.epoch - 1] = state.inodes.length;
        const key = lockName(process);
        const next: State = {
          ...state,
          names,
          inodes: [
            ...state.inodes,
            {
              epoch: process.epoch,
              owner: process.host,
              settled: false,
              linkDurable: false,
              complete: false,
              completeDurable: false,
              emptied: false,
              cells: [],
            },
          ],
          locks: [...state.locks, [key, process.name]],
          busy: [...state.busy, key],
        };
        const settles = keeps('move the time of the directory before reading below');
        return go(
          `creates ${process.epoch}`,
          withProcess(next, at, { step: settles ? 'settle' : afterSettle, inode: state.inodes.length }),
        );
      }
      case 'settle': {
        const inodes = state.inodes.map((inode) => ({ ...inode, settled: true }));
        return go('moves the time', withProcess({ ...state, inodes }, at, { step: afterSettle }));
      }
      case 'sync directory': {
        const linked = state.names[process.epoch - 1] === process.inode;
        if (!linked) return go('finds its name gone', ended(state, at, process.name));
        return go(
          'fsyncs the directory',
          withProcess(withInode(state, process.inode, { linkDurable: true }), at, { step: afterCreate }),
        );
      }
      case 'find base': {
        const below = (process.base < 0 ? process.epoch : process.base) - 1;
        const index = state.names[below - 1] ?? -1;
        const gap = index < 0 && keeps('names are contiguous');
        if (below < 1 || gap) return go('finds no base', ended(state, at, process.name));
        if (index >= 0 && inodeAt(state, index).emptied && keeps('who meets an emptied file begins again')) {
          const again = { step: 'find base', base: -1 } as const;
          if (process.due === undefined) return go('meets an emptied file', to(again));
          return newestInSight(state).map((newest) =>
            move('meets an emptied file', to({ ...again, epoch: newest + 1 })),
          );
        }
        const fit = index >= 0 && (inodeAt(state, index).complete || !keeps('a base must be complete'));
        return go(
          fit ? 'finds its base' : 'goes further down',
          to({ step: fit ? 'read base' : 'find base', base: below }),
        );
      }
      case 'read base': {
        const index = state.names[process.base - 1] ?? -1;
        if (index < 0) return go('finds its base gone', ended(state, at, process.name));
        if (inodeAt(state, index).emptied && keeps('who meets an emptied file begins again')) {
          return go('loses what it reads', to({ step: 'find base', base: -1 }));
        }
        const known = replay(inodeAt(state, index));
        if (process.due !== undefined) {
          const missing = process.due.find((lease) => !known.some((other) => other.by === lease.by));
          const next = ended(state, at, process.name);
          return go(
            'has read',
            missing === undefined ? next : { ...next, broken: `a reader misses ${missing.by}` },
          );
        }
        if (!keeps('create the epoch before reading the one below') && process.inode < 0) {
          return go('reads its base', to({ step: 'create', known }));
        }
        if (!keeps('checkpoint and complete before the first acknowledgement')) {
          return go('reads its base', to({ step: process.remedy ? 'complete' : 'decide', known }));
        }
        return go('reads its base', to({ step: 'complete', known }));
      }
      case 'late complete':
      case 'complete': {
        const cells = process.known.map((lease) => ({ ...lease, whole: true, durable: false, lost: false }));
        const late = process.step === 'late complete';
        const next = withInode(state, process.inode, {
          complete: true,
          cells: late ? inodeAt(state, process.inode).cells : cells,
        });
        if (late) return go('completes late', ended(next, at, process.name));
        const syncs = fsyncs && keeps('fsync the checkpoint before the first acknowledgement');
        const base = state.names[process.base - 1] ?? -1;
        const early =
          keeps('a superseded file is emptied only after its successor has acknowledged a record') || base < 0
            ? []
            : go('empties what it has read', withInode(state, base, NOTHING));
        return [
          ...early,
          move(
            'writes checkpoint and complete',
            withProcess(next, at, { step: syncs ? 'sync complete' : 'look after take' }),
          ),
        ];
      }
      case 'sync complete': {
        const inode = inodeAt(state, process.inode);
        if (!inode.complete) return go('finds its checkpoint gone', ended(state, at, process.name));
        const next = withInode(state, process.inode, { ...synced(inode), completeDurable: true });
        return go('fsyncs its checkpoint', withProcess(next, at, { step: 'look after take' }));
      }
      case 'look after take': {
        const taken = (): readonly Move[] => {
          if (!process.remedy) {
            const busy = state.busy.filter((name) => name !== lockName(process));
            return go(
              'owns the epoch',
              withProcess({ ...state, busy }, at, { step: 'decide', known: [], base: -1 }),
            );
          }
          if (process.known.some((lease) => lease.by === process.name)) {
            return go('finds its record: acknowledges', acknowledge(state, process, at));
          }
          return go(
            'does not find its record',
            ended({ ...state, denied: [...state.denied, process.name] }, at, process.name),
          );
        };
        return looks(process.epoch).flatMap((successor) =>
          successor && keeps('look for a successor after the take')
            ? go('sees a successor', ended(state, at, process.name))
            : taken(),
        );
      }
      case 'list':
        return newestInSight(state).flatMap((newest) =>
          go('lists', to({ step: 'find base', epoch: newest + 1, due: state.acknowledged })),
        );
    }
  };

  const out: Move[] = [];
  for (const [at, process] of state.processes.entries()) {
    if (process.step === 'end') continue;
    out.push([`${process.name}: is killed`, ended(state, at, process.name)], ...movesOf(process, at));
  }

  for (const [i, flight] of state.flights.entries()) {
    const inode = inodeAt(state, flight.inode);
    const landed = withInode(state, flight.inode, { cells: put(inode, flight.index, flight.lease, true) });
    out.push(['a late write lands', { ...landed, flights: state.flights.filter((_, j) => j !== i) }]);
  }

  if (state.powerCuts < setting.powerCutsMax) {
    out.push([
      'the storage loses what was not fsynced',
      {
        ...state,
        powerCuts: state.powerCuts + 1,
        flights: [],
        names: state.names.map((index) => (index >= 0 && inodeAt(state, index).linkDurable ? index : -1)),
        inodes: state.inodes.map((inode) => {
          const cells = inode.cells.map((cell) => (cell.durable ? cell : { ...cell, whole: false }));
          const last = cells.findLastIndex((cell) => cell.durable);
          return { ...inode, complete: inode.completeDurable, cells: cells.slice(0, last + 1) };
        }),
      },
    ]);
  }
  return out;
};
