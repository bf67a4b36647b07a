/**
 * Judges what callers saw against the log that is left. Pure, and it trusts neither: the order of the log is checked
 * by itself, every acknowledged call is looked up in it, every event must have been asked for, and who held which
 * uid when is worked out from the callers' own clocks, without the log.
 */
import type { EventKind, EventOf, LeaseEvent } from '../../../src/lease/event.ts';
import type { AttemptName, Call, CallKind, Position } from './history.ts';
import type { LogRecord } from './read-log.ts';

export type Evidence = {
  readonly calls: readonly Call[];
  /** All that counts, the oldest first, and the owner of every epoch that was begun. */
  readonly records: readonly LogRecord[];
  readonly owners: ReadonlyMap<number, string>;
  /** Leases as a fresh reader replays them. */
  readonly final: readonly { readonly lease: number; readonly uid: number }[];
};

const KIND_OF: Partial<Record<EventKind, CallKind>> = {
  allocate: 'allocate',
  renew: 'renew',
  drain: 'drain',
  ask: 'drain',
  certify: 'certify',
  normalise: 'normalise',
  normalised: 'normalised',
  free: 'free',
};

const isBehind = (one: Position, other: Position): boolean =>
  one.epoch > other.epoch || (one.epoch === other.epoch && one.sequence > other.sequence);
const show = ({ epoch, sequence }: Position): string => `${epoch}:${sequence}`;

/** One lease as the log tells it. */
type Told = {
  readonly attempt: AttemptName;
  readonly uid: number;
  readonly nodes: readonly string[];
  readonly scopes: readonly string[];
  readonly at: Position;
  readonly bound: Set<string>;
  readonly certified: Set<string>;
  readonly normalised: Set<string>;
  isDrained: boolean;
  /** Whose uid it was before, if anybody's. */
  readonly previous: number | undefined;
  isFree: boolean;
};

type Tale = {
  readonly leases: ReadonlyMap<number, Told>;
  readonly byAttempt: ReadonlyMap<AttemptName, number>;
  /** Where the first event of a kind for an attempt stands: 'kind attempt'. */
  readonly first: ReadonlyMap<string, Position>;
  readonly violations: readonly string[];
};

const attemptOf = ({ job, attempt }: EventOf<'allocate'>): AttemptName => `${job}/${attempt}`;
const jobOf = (attempt: AttemptName): string => attempt.slice(0, attempt.lastIndexOf('/'));

/** The log by itself: its order, one holder for each uid, nothing freed without proof, no half of a record. */
const tellLog = (records: readonly LogRecord[]): Tale => {
  const leases = new Map<number, Told>();
  const byAttempt = new Map<AttemptName, number>();
  const first = new Map<string, Position>();
  const holders = new Map<number, number>();
  const last = new Map<number, number>();
  const violations: string[] = [];
  let previous: Position | undefined;

  const tellExisting = (
    event: Exclude<LeaseEvent, { kind: 'allocate' | 'forget' }>,
    record: LogRecord,
  ): void => {
    const at = show(record);
    const told = leases.get(event.lease);
    if (told === undefined || told.isFree) {
      violations.push(`${at}: ${event.kind} of lease ${event.lease}, which is not there`);
      return;
    }
    const kind = KIND_OF[event.kind];
    const name = `${kind} ${told.attempt}`;
    if (kind !== undefined && !first.has(name)) first.set(name, record);
    switch (event.kind) {
      case 'bind':
        told.bound.add(event.node);
        break;
      case 'drain': {
        told.isDrained = true;
        const others = record.events.filter((other) => other.kind === 'bind' && other.lease === event.lease);
        const bound = new Set([
          ...told.bound,
          ...others.map((other) => (other.kind === 'bind' ? other.node : '')),
        ]);
        for (const node of told.nodes)
          if (!bound.has(node))
            violations.push(`${at}: half a drain of lease ${event.lease}: ${node} is not bound`);
        break;
      }
      case 'certify':
        told.certified.add(event.node);
        break;
      case 'normalised':
        told.normalised.add(event.path);
        break;
      case 'quarantine':
        if (
          event.quarantine.code === 'superseded' &&
          !record.events.some((other) => other.kind === 'allocate' && other.job === jobOf(told.attempt))
        )
          violations.push(`${at}: half an allocation: lease ${event.lease} is superseded by nothing`);
        break;
      case 'free': {
        const missing = [
          ...(told.isDrained ? [] : ['a drain']),
          ...told.nodes.filter((node) => !told.certified.has(node)),
          ...told.scopes.filter((scope) => !told.normalised.has(scope)),
        ];
        if (missing.length > 0)
          violations.push(`${at}: uid ${told.uid} is freed without proof of ${missing.join(', ')}`);
        told.isFree = true;
        if (holders.get(told.uid) === event.lease) holders.delete(told.uid);
        break;
      }
    }
  };

  for (const record of records) {
    const at = show(record);
    if (previous !== undefined && !isBehind(record, previous))
      violations.push(`${at}: stands behind ${show(previous)}`);
    if (previous?.epoch === record.epoch && record.sequence > previous.sequence + 1)
      violations.push(`${at}: records before it are missing`);
    previous = record;
    for (const event of record.events) {
      if (event.kind === 'forget') continue;
      if (event.kind !== 'allocate') {
        tellExisting(event, record);
        continue;
      }
      const { uid, lease } = event;
      const attempt = attemptOf(event);
      const holder = holders.get(uid);
      if (holder !== undefined)
        violations.push(`${at}: uid ${uid} of lease ${holder} is given to lease ${lease}`);
      if (leases.has(lease)) violations.push(`${at}: there is a lease ${lease} already`);
      if (byAttempt.has(attempt)) violations.push(`${at}: ${attempt} gets a second lease`);
      leases.set(lease, {
        attempt,
        uid,
        nodes: event.nodes,
        scopes: [...event.roots, ...(event.workspace === null ? [] : [event.workspace])].map(
          ({ path }) => path,
        ),
        at: record,
        bound: new Set(),
        certified: new Set(),
        normalised: new Set(),
        isDrained: false,
        previous: last.get(uid),
        isFree: false,
      });
      byAttempt.set(attempt, lease);
      holders.set(uid, lease);
      last.set(uid, lease);
      if (!first.has(`allocate ${attempt}`)) first.set(`allocate ${attempt}`, record);
    }
  }
  return { leases, byAttempt, first, violations };
};

const findAcknowledgedAndGone = (
  calls: readonly Call[],
  { first, byAttempt, leases }: Tale,
): readonly string[] =>
  calls.flatMap(({ kind, attempt, outcome, process }) => {
    if (outcome.kind !== 'acknowledged' || kind === 'takeover') return [];
    const what = `${process}: ${kind} of ${attempt} was acknowledged at ${show(outcome.at)}`;
    const event = first.get(`${kind} ${attempt}`);
    if (event === undefined) return [`${what} and is not in the log`];
    if (isBehind(event, outcome.at)) return [`${what}, before its event at ${show(event)}`];
    const lease = byAttempt.get(attempt) ?? 0;
    const uid = leases.get(lease)?.uid;
    return outcome.lease === lease && outcome.uid === uid
      ? []
      : [`${what} with lease ${outcome.lease} and uid ${outcome.uid}, but has lease ${lease} and uid ${uid}`];
  });

const groupCalls = (calls: readonly Call[]): ReadonlyMap<string, readonly Call[]> => {
  const groups = new Map<string, Call[]>();
  for (const call of calls) {
    const name = `${call.kind} ${call.attempt}`;
    const group = groups.get(name);
    if (group === undefined) groups.set(name, [call]);
    else group.push(call);
  }
  return groups;
};

/** Events that nobody asked for, or of which everybody who asked was told that they do not count. */
const findUncalled = (groups: ReadonlyMap<string, readonly Call[]>, { first }: Tale): readonly string[] =>
  [...first].flatMap(([name, at]) => {
    const asked = groups.get(name) ?? [];
    if (asked.some(({ outcome }) => outcome.kind !== 'denied')) return [];
    return [`${show(at)}: ${name} counts, and was ${asked.length === 0 ? 'asked for by nobody' : 'denied'}`];
  });

/** Holders of one uid at one time, by the clocks of the callers alone, and uids that came back before they were freed. */
const findShared = (groups: ReadonlyMap<string, readonly Call[]>, { leases }: Tale): readonly string[] => {
  type Hold = { readonly attempt: AttemptName; readonly fromUs: number; readonly toUs: number };
  const holds = new Map<number, Hold[]>();
  const freeBeganUs = (attempt: AttemptName): number =>
    Math.min(
      ...(groups.get(`free ${attempt}`) ?? [])
        .filter(({ outcome }) => outcome.kind !== 'denied')
        .map(({ beganUs }) => beganUs),
    );
  const violations: string[] = [];
  for (const [name, calls] of groups) {
    if (!name.startsWith('allocate ')) continue;
    for (const { attempt, outcome, endedUs } of calls) {
      if (outcome.kind !== 'acknowledged') continue;
      const hold = { attempt, fromUs: endedUs, toUs: freeBeganUs(attempt) };
      const ofUid = holds.get(outcome.uid);
      if (ofUid === undefined) holds.set(outcome.uid, [hold]);
      else ofUid.push(hold);
      const before = leases.get(leases.get(outcome.lease)?.previous ?? 0);
      if (before !== undefined && freeBeganUs(before.attempt) > endedUs)
        violations.push(
          `uid ${outcome.uid} was given to ${attempt} before ${before.attempt} was asked to be freed`,
        );
    }
  }
  for (const [uid, ofUid] of holds) {
    let latest: Hold | undefined;
    for (const hold of ofUid.sort((a, b) => a.fromUs - b.fromUs)) {
      if (latest !== undefined && latest.attempt !== hold.attempt && hold.fromUs < latest.toUs)
        violations.push(`uid ${uid} was held by ${latest.attempt} and ${hold.attempt} at the same time`);
      if (latest === undefined || hold.toUs > latest.toUs) latest = hold;
    }
  }
  return violations;
};

/** Who is answered in whose epoch, and that what began after an answer was decided after it. */
const findDisorder = (calls: readonly Call[], owners: ReadonlyMap<number, string>): readonly string[] => {
  const violations: string[] = [];
  type Answered = { readonly call: Call; readonly at: Position };
  const answered: Answered[] = calls.flatMap((call) =>
    call.outcome.kind === 'acknowledged' ? [{ call, at: call.outcome.at }] : [],
  );
  const takers = new Map<number, string>();
  for (const { call, at } of answered) {
    const owner = owners.get(at.epoch);
    if (owner !== call.host)
      violations.push(`${call.process} of ${call.host} was acknowledged in epoch ${at.epoch} of ${owner}`);
    if (call.kind !== 'takeover') continue;
    const other = takers.get(at.epoch);
    if (other !== undefined)
      violations.push(`epoch ${at.epoch} was taken by ${other} and by ${call.process}`);
    takers.set(at.epoch, call.process);
  }
  const byEnd = [...answered].sort((a, b) => a.call.endedUs - b.call.endedUs);
  const byBegin = [...answered].sort((a, b) => a.call.beganUs - b.call.beganUs);
  let next = 0;
  let newest: Answered | undefined;
  for (const { call, at } of byBegin) {
    for (; (byEnd[next]?.call.endedUs ?? Number.POSITIVE_INFINITY) < call.beganUs; next += 1) {
      const ended = byEnd[next];
      if (ended !== undefined && (newest === undefined || isBehind(ended.at, newest.at))) newest = ended;
    }
    if (newest !== undefined && isBehind(newest.at, at))
      violations.push(
        `${call.process}: ${call.kind} ${call.attempt} began after ${newest.call.process} was answered at ` +
          `${show(newest.at)}, and was decided at ${show(at)}`,
      );
  }
  return violations;
};

/** What a fresh reader replays must be what is left of the log. */
const findWrongEnd = ({ leases }: Tale, final: Evidence['final']): readonly string[] => {
  const name = ({ lease, uid }: { lease: number; uid: number }): string => `lease ${lease} with uid ${uid}`;
  const wanted = [...leases].flatMap(([lease, { uid, isFree }]) => (isFree ? [] : [name({ lease, uid })]));
  const found = final.map(name);
  return [
    ...wanted
      .filter((one) => !found.includes(one))
      .map((one) => `${one} is in the log, and not in the state`),
    ...found
      .filter((one) => !wanted.includes(one))
      .map((one) => `${one} is in the state, and not in the log`),
  ];
};

/** Every violation, as one line each; none when everybody was told the truth. */
export const findViolations = ({ calls, records, owners, final }: Evidence): readonly string[] => {
  const tale = tellLog(records);
  const groups = groupCalls(calls);
  return [
    ...tale.violations,
    ...findAcknowledgedAndGone(calls, tale),
    ...findUncalled(groups, tale),
    ...findShared(groups, tale),
    ...findDisorder(calls, owners),
    ...findWrongEnd(tale, final),
  ];
};
