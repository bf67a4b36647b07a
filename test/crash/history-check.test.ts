/** The checker of histories, held against histories in which one thing is not true. */
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { Attempt, Epoch, JobId, LeaseNumber, NodeName, Uid } from '../../src/base/ids.ts';
import type { LeaseEvent } from '../../src/lease/event.ts';
import { type Evidence, findViolations } from './history/check.ts';
import type { Call, CallKind, Outcome, Position } from './history/history.ts';
import { callsOf } from './history/history.ts';
import { keepingFiles, keptPath } from './history/kept.ts';
import type { LogRecord } from './history/read-log.ts';

const NODE = 'n1' as NodeName;
const PATH = '/scratch';
const UID = 70_000;

/** Events of one kind, as the driver's rules write them. */
const eventsOf = (kind: CallKind, job: string, lease: number, uid: number, epoch: number): LeaseEvent[] => {
  const number = lease as LeaseNumber;
  const term = { ttlMs: 60_000, issued: { wallMs: 0, monotonicMs: 0, bootId: 'b' } };
  switch (kind) {
    case 'allocate':
      return [
        {
          kind,
          lease: number,
          uid: uid as Uid,
          job: job as JobId,
          attempt: 0 as Attempt,
          schedulerStartS: null,
          submitter: { uid: 1001, gid: 100 },
          nodes: [NODE],
          roots: [],
          workspace: { storage: 'scratch', path: PATH },
          term,
          epoch: epoch as Epoch,
        },
      ];
    case 'drain':
      return [
        { kind, lease: number, nonces: [{ node: NODE, nonce: '00' }] },
        { kind: 'bind', lease: number, node: NODE, binding: { workerKey: '00', bootId: 'b' } },
      ];
    case 'certify':
      return [{ kind, lease: number, node: NODE, digest: '00', certificate: 'c' }];
    case 'normalise':
      return [{ kind, lease: number }];
    case 'normalised':
      return [{ kind, lease: number, path: PATH, walked: 0, changed: 0 }];
    case 'free':
      return [{ kind, lease: number, wallMs: 0 }];
    case 'renew':
      return [{ kind, lease: number, term, epoch: epoch as Epoch }];
    case 'takeover':
      return [];
  }
};

const LIFE: readonly CallKind[] = ['allocate', 'drain', 'certify', 'normalise', 'normalised', 'free'];

type Plain = { -readonly [Key in keyof Call]: Call[Key] };
type Story = {
  calls: Plain[];
  records: LogRecord[];
  owners: Map<number, string>;
  final: { lease: number; uid: number }[];
};

/**
 * Host a leads job x through its life in epoch 1; b takes epoch 2 and gives the uid to y, and another to z. Nothing
 * overlaps: call n lasts from 10n to 10n+5.
 */
const makeStory = (): Story => {
  const calls: Plain[] = [];
  const records: LogRecord[] = [];
  const add = (host: string, kind: CallKind, job: string, lease: number, uid: number, at: Position): void => {
    const beganUs = 10 * calls.length;
    const outcome: Outcome = { kind: 'acknowledged', at, lease, uid };
    const attempt = kind === 'takeover' ? '' : `${job}/0`;
    calls.push({ process: `${host}.0`, host, kind, attempt, beganUs, endedUs: beganUs + 5, outcome });
    const events = eventsOf(kind, job, lease, uid, at.epoch);
    if (events.length > 0) records.push({ ...at, owner: host, events });
  };
  for (const [index, kind] of LIFE.entries()) add('a', kind, 'x', 1, UID, { epoch: 1, sequence: 3 + index });
  add('b', 'takeover', '', 0, 0, { epoch: 2, sequence: 2 });
  add('b', 'allocate', 'y', 2, UID, { epoch: 2, sequence: 3 });
  add('b', 'allocate', 'z', 3, UID + 1, { epoch: 2, sequence: 4 });
  const owners = new Map([
    [1, 'a'],
    [2, 'b'],
  ]);
  const final = [
    { lease: 2, uid: UID },
    { lease: 3, uid: UID + 1 },
  ];
  return { calls, records, owners, final };
};

const callOf = ({ calls }: Story, kind: CallKind, attempt: string): Plain => {
  const call = calls.find((one) => one.kind === kind && one.attempt === attempt);
  if (call === undefined) throw new Error(`no ${kind} of ${attempt}`);
  return call;
};
const dropRecord = (story: Story, kind: CallKind, lease: number): void => {
  story.records = story.records.filter(
    ({ events }) => !events.some((event) => event.kind === kind && 'lease' in event && event.lease === lease),
  );
};
const DENIED: Outcome = { kind: 'denied', code: 'log-io' };

const judge = (change: (story: Story) => void): readonly string[] => {
  const story = makeStory();
  change(story);
  return findViolations(story satisfies Evidence);
};

describe('the checker of histories', () => {
  test('finds nothing in a true one', () => {
    expect(judge(() => undefined)).toEqual([]);
  });

  test('lets what was not answered count or not', () => {
    expect(
      judge((story) => {
        callOf(story, 'allocate', 'z/0').outcome = { kind: 'unknown' };
      }),
    ).toEqual([]);
    expect(
      judge((story) => {
        callOf(story, 'allocate', 'z/0').outcome = { kind: 'unknown' };
        dropRecord(story, 'allocate', 3);
        story.final = story.final.filter(({ lease }) => lease !== 3);
      }),
    ).toEqual([]);
  });

  const PLANTED: readonly (readonly [string, RegExp, (story: Story) => void])[] = [
    [
      'an acknowledged grant that is gone',
      /allocate of z\/0 was acknowledged at 2:4 and is not in the log/,
      (story) => {
        dropRecord(story, 'allocate', 3);
        story.final = story.final.filter(({ lease }) => lease !== 3);
      },
    ],
    [
      'a grant that was acknowledged before it was written',
      /before its event/,
      (story) => {
        callOf(story, 'allocate', 'z/0').outcome = {
          kind: 'acknowledged',
          at: { epoch: 2, sequence: 3 },
          lease: 3,
          uid: UID + 1,
        };
      },
    ],
    [
      'a grant that was acknowledged with another uid',
      /but has lease 3/,
      (story) => {
        callOf(story, 'allocate', 'z/0').outcome = {
          kind: 'acknowledged',
          at: { epoch: 2, sequence: 4 },
          lease: 3,
          uid: UID + 2,
        };
      },
    ],
    [
      'a uid that the log gives to two',
      /uid 70000 of lease 1 is given to lease 2/,
      (story) => dropRecord(story, 'free', 1),
    ],
    [
      'a uid that two were told is theirs, by their own clocks',
      /held by x\/0 and y\/0 at the same time/,
      (story) => {
        const { beganUs } = callOf(story, 'allocate', 'y/0');
        Object.assign(callOf(story, 'free', 'x/0'), { beganUs: beganUs + 7, endedUs: beganUs + 8 });
      },
    ],
    [
      'a uid that came back before its release was asked for',
      /before x\/0 was asked to be freed/,
      (story) => {
        callOf(story, 'free', 'x/0').beganUs = 500;
        callOf(story, 'free', 'x/0').endedUs = 505;
      },
    ],
    [
      'a uid that nobody has freed',
      /free x\/0 counts, and was asked for by nobody/,
      (story) => {
        story.calls = story.calls.filter(({ kind }) => kind !== 'free');
      },
    ],
    [
      'a release that was denied and counts',
      /free x\/0 counts, and was denied/,
      (story) => {
        callOf(story, 'free', 'x/0').outcome = DENIED;
      },
    ],
    [
      'a grant that was denied and counts',
      /allocate z\/0 counts, and was denied/,
      (story) => {
        callOf(story, 'allocate', 'z/0').outcome = DENIED;
      },
    ],
    [
      'a uid that is freed without the certificate of its node',
      /freed without proof of n1/,
      (story) => dropRecord(story, 'certify', 1),
    ],
    [
      'a uid that is freed without a walk of its storage',
      /freed without proof of \/scratch/,
      (story) => dropRecord(story, 'normalised', 1),
    ],
    [
      'half a record',
      /half a drain of lease 1: n1 is not bound/,
      (story) => {
        story.records = story.records.map((record) => ({
          ...record,
          events: record.events.filter(({ kind }) => kind !== 'bind'),
        }));
      },
    ],
    [
      'a lease that is superseded by nothing',
      /half an allocation/,
      (story) => {
        const quarantine = { code: 'superseded', text: '', node: null, wallMs: 0 } as const;
        const events: LeaseEvent[] = [{ kind: 'quarantine', lease: 3 as LeaseNumber, quarantine }];
        story.records.push({ epoch: 2, sequence: 5, owner: 'b', events });
      },
    ],
    [
      'a record that is missing in the middle',
      /records before it are missing/,
      (story) => dropRecord(story, 'normalise', 1),
    ],
    [
      'a record twice',
      /stands behind/,
      (story) => {
        const [first] = story.records;
        if (first !== undefined) story.records.push(first);
      },
    ],
    [
      'an event of a lease that has ended',
      /renew of lease 1, which is not there/,
      (story) => {
        const events = eventsOf('renew', 'x', 1, UID, 2);
        story.records.push({ epoch: 2, sequence: 5, owner: 'b', events });
      },
    ],
    [
      'an attempt with two leases',
      /y\/0 gets a second lease/,
      (story) => {
        const events = eventsOf('allocate', 'y', 4, UID + 3, 2);
        story.records.push({ epoch: 2, sequence: 5, owner: 'b', events });
      },
    ],
    [
      'an answer in an epoch of another host',
      /a\.0 of a was acknowledged in epoch 2 of b/,
      (story) => {
        Object.assign(callOf(story, 'allocate', 'z/0'), { host: 'a', process: 'a.0' });
      },
    ],
    [
      'an epoch that two have taken',
      /epoch 2 was taken by b\.0 and by b\.1/,
      (story) => {
        story.calls.push({ ...callOf(story, 'takeover', ''), process: 'b.1' });
      },
    ],
    [
      'a decision in an epoch that was over when it was asked for',
      /began after b\.0 was answered at 2:4, and was decided at 1:9/,
      (story) => {
        const events = eventsOf('allocate', 'w', 4, UID + 4, 1);
        story.records.splice(LIFE.length, 0, { epoch: 1, sequence: 9, owner: 'a', events });
        story.final.push({ lease: 4, uid: UID + 4 });
        const outcome: Outcome = {
          kind: 'acknowledged',
          at: { epoch: 1, sequence: 9 },
          lease: 4,
          uid: UID + 4,
        };
        story.calls.push({
          ...callOf(story, 'allocate', 'z/0'),
          process: 'a.1',
          host: 'a',
          attempt: 'w/0',
          beganUs: 900,
          endedUs: 905,
          outcome,
        });
      },
    ],
    [
      'a lease that a reader does not see',
      /lease 2 with uid 70000 is in the log, and not in the state/,
      (story) => {
        story.final = story.final.filter(({ lease }) => lease !== 2);
      },
    ],
    [
      'a lease that only a reader sees',
      /lease 9 with uid 70009 is in the state, and not in the log/,
      (story) => {
        story.final.push({ lease: 9, uid: 70_009 });
      },
    ],
  ];
  test.each(PLANTED)('catches %s', (_, says, plant) => {
    expect(judge(plant).join('\n')).toMatch(says);
  });

  test('takes a call that its process did not end as one that nobody knows the outcome of', () => {
    const begins = { kind: 'allocate', attempt: 'x/0' } as const;
    expect(callsOf('p', 'a', [{ call: 0, us: 7, begins }])).toEqual([
      {
        process: 'p',
        host: 'a',
        ...begins,
        beganUs: 7,
        endedUs: Number.POSITIVE_INFINITY,
        outcome: { kind: 'unknown' },
      },
    ]);
  });
});

test('what stood in a file that is emptied is kept, also when a late write of its owner is emptied after it', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'xce-kept-'));
  try {
    mkdirSync(join(directory, 'log'));
    const path = join(directory, 'log', 'leases.wal.7');
    writeFileSync(path, 'whole', { mode: 0o600 });
    for (const late of ['late', '']) {
      const file = await keepingFiles.open(path, 'append');
      await file.empty();
      await file.append(Buffer.from(late));
      await file.close();
    }
    expect(readFileSync(path, 'utf8')).toBe('');
    expect(readFileSync(keptPath(path), 'utf8')).toBe('whole');
  } finally {
    rmSync(directory, { recursive: true });
  }
});
