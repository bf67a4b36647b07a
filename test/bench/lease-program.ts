/**
 * The part of `npm run bench -- lease` that runs on the node, bundled and put beside the installed product:
 *
 *   fill CONFIG COUNT              a lease log with as many active leases, taken over so that they are a checkpoint
 *   allocate CONFIG COUNT AT_ONCE  that many allocations in this process, as many at once
 *   put|grant ENDPOINT COUNT AT_ONCE   the same number of requests to an etcd over one connection
 *   append DIRECTORY COUNT         as many appends to a file, each with an fsync: what the disk allows a log
 *   write-log DIRECTORY RECORDS    a life of leases as a log, and the same records as JSON lines with a checksum each
 *   replay DIRECTORY, replay-json DIRECTORY
 *
 * Each writes one JSON document: milliseconds per operation, or of the whole, and the peak of its memory.
 */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import {
  closeSync,
  createWriteStream,
  fsyncSync,
  openSync,
  readFileSync,
  readSync,
  unlinkSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import { finished } from 'node:stream/promises';
import { crc32 } from 'node:zlib';
import type { Attempt, Epoch, JobId, LeaseNumber, NodeName, Uid } from '../../src/base/ids.ts';
import { loadConfig } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/settings.ts';
import type { LeaseEvent } from '../../src/lease/event.ts';
import { leaseMachine } from '../../src/lease/machine.ts';
import type { LeaseState } from '../../src/lease/state.ts';
import { LeaseStore } from '../../src/lease/store.ts';
import { openLeaseLog } from '../../src/operations/lease-log-ports.ts';
import { bootClock } from '../../src/os/boot-clock.ts';
import { readBootId } from '../../src/os/clock.ts';
import { systemConfigPorts } from '../../src/os/config-ports.ts';
import { hostFiles } from '../../src/os/log-files.ts';
import {
  type EncodedFrame,
  encodeBase,
  encodeEvents,
  encodeFrame,
  encodeHeader,
} from '../../src/wal/encoder.ts';
import type { LeaseLog } from '../../src/wal/log.ts';
import { viewOf } from '../../src/wal/machine.ts';
import { FILE_START, TYPE } from '../../src/wal/record.ts';
import { Replay } from '../../src/wal/replay.ts';
import { connectEtcd } from './etcd-client.ts';

const say = (result: Readonly<Record<string, number>>): void => {
  process.stdout.write(`${JSON.stringify(result)}\n`);
};

const nowMs = (): number => Number(process.hrtime.bigint()) / 1e6;

/** Of this program alone: the peak that wait4(2) gives counts what forked it as well. */
const peakMB = (): number => {
  const kib = /^VmHWM:\s+(\d+) kB$/m.exec(readFileSync('/proc/self/status', 'latin1'))?.[1];
  return (Number(kib) * 1024) / 1e6;
};

const issued = { wallMs: bootClock.wallMs(), monotonicMs: bootClock.monotonicMs(), bootId: readBootId() };
const BATCH = 10_000;

const allocation = (lease: number, uid: number, epoch: number): LeaseEvent => ({
  kind: 'allocate',
  lease: lease as LeaseNumber,
  uid: uid as Uid,
  job: `${4_000_000 + lease}` as JobId,
  attempt: 0 as Attempt,
  schedulerStartS: null,
  submitter: { uid: 1001, gid: 1001 },
  nodes: [nodeOf(lease)],
  roots: [],
  workspace: null,
  term: { ttlMs: 3_600_000, issued },
  epoch: epoch as Epoch,
});

const NONCE = '5a'.repeat(16);
const BINDING = { workerKey: 'c3'.repeat(32), bootId: issued.bootId };
const CERTIFICATE = 'x'.repeat(300);

const nodeOf = (lease: number): NodeName => `n${(lease % 1000) + 1}` as NodeName;

/** What becomes of a lease of one node up to the moment in which its uid is free. */
const laterEvents = (number: number, node: NodeName, epoch: number): readonly LeaseEvent[] => {
  const lease = number as LeaseNumber;
  const renew = { kind: 'renew', lease, term: { ttlMs: 3_600_000, issued }, epoch: epoch as Epoch } as const;
  return [
    { kind: 'bind', lease, node, binding: BINDING },
    ...[renew, renew, renew, renew],
    { kind: 'drain', lease, nonces: [{ node, nonce: NONCE }] },
    { kind: 'certify', lease, node, digest: 'd4'.repeat(32), certificate: CERTIFICATE },
    { kind: 'normalise', lease },
    { kind: 'free', lease, wallMs: issued.wallMs },
  ];
};

const withLog = async <T>(
  configPath: string,
  work: (log: LeaseLog<LeaseState, LeaseEvent>, settings: Settings) => Promise<T>,
): Promise<T> => {
  const { settings } = loadConfig(configPath, systemConfigPorts);
  const log = openLeaseLog(settings);
  try {
    return await work(log, settings);
  } finally {
    await log.close();
  }
};

const fill = (configPath: string, count: number): Promise<void> =>
  withLog(configPath, async (log, settings) => {
    await log.init();
    for (let done = 0; done < count; done += BATCH) {
      const size = Math.min(BATCH, count - done);
      await log.commit((_, { epoch }) => ({
        events: Array.from({ length: size }, (_unused, index) =>
          allocation(done + index + 1, settings.pool.first + done + index, epoch),
        ),
        result: undefined,
      }));
    }
    await log.takeover();
  });

/** Runs `count` operations, `atOnce` of them at any time. Returns how long they took in all, milliseconds. */
const timeOperations = async (
  count: number,
  atOnce: number,
  operation: (index: number) => Promise<unknown>,
): Promise<number> => {
  let next = 0;
  const lane = async (): Promise<void> => {
    while (next < count) {
      next += 1;
      await operation(next);
    }
  };
  const startMs = nowMs();
  await Promise.all(Array.from({ length: atOnce }, lane));
  return nowMs() - startMs;
};

const WARM_UP = 100;

/** The name service is left out: etcd asks none either. */
const allocate = (configPath: string, count: number, atOnce: number): Promise<void> =>
  withLog(configPath, async (log, settings) => {
    const nameService = { lookUp: async () => ({ answer: 'absent' as const }) };
    const leases = new LeaseStore({ log, nameService, clock: bootClock, bootId: issued.bootId }, settings);
    const granted: number[] = [];
    const grant = async (name: string): Promise<void> => {
      const { result } = await leases.allocate({
        job: name as JobId,
        attempt: 0 as Attempt,
        schedulerStartS: null,
        submitter: { uid: 1001, gid: 1001 },
        nodes: ['n1' as NodeName],
        roots: [],
        workspace: null,
        ttlMs: 3_600_000,
      });
      granted.push(result.lease.lease);
    };
    await timeOperations(WARM_UP, atOnce, (index) => grant(`${process.pid}.w${index}`));
    const ms = await timeOperations(count, atOnce, (index) => grant(`${process.pid}.${index}`));
    say({ msEach: ms / count, perSecond: (count * 1000) / ms });
    // The next run finds as many live leases as this one did.
    for (let done = 0; done < granted.length; done += 100) {
      const some = granted.slice(done, done + 100);
      await log.commit((_, { epoch }) => ({
        events: some.flatMap((lease) => laterEvents(lease, 'n1' as NodeName, epoch)),
        result: undefined,
      }));
    }
  });

const etcd = async (
  method: 'put' | 'grant',
  endpoint: string,
  count: number,
  atOnce: number,
): Promise<void> => {
  const client = await connectEtcd(endpoint);
  const request = (index: number): Promise<void> =>
    method === 'put'
      ? client.put(`lease/${process.pid}.${index}`, CERTIFICATE.slice(0, 120))
      : client.grant(3600);
  await timeOperations(WARM_UP, atOnce, request);
  const ms = await timeOperations(count, atOnce, request);
  client.close();
  say({ msEach: ms / count, perSecond: (count * 1000) / ms });
};

/** About what one allocation writes. */
const APPENDED_BYTES = 200;

/** With no more than the two system calls, and nothing between them. */
const append = async (directory: string, count: number): Promise<void> => {
  const path = join(directory, 'appended');
  const fd = openSync(path, 'a', 0o600);
  const record = randomBytes(APPENDED_BYTES);
  const operation = async (): Promise<void> => {
    writeSync(fd, record);
    fsyncSync(fd);
  };
  await timeOperations(WARM_UP, 1, operation);
  const ms = await timeOperations(count, 1, operation);
  closeSync(fd);
  unlinkSync(path);
  say({ msEach: ms / count, perSecond: (count * 1000) / ms });
};

const LIVE = 10_000;
const FIRST_UID = 1_900_000_000;

/** Jobs that come and go, LIVE of them at a time: one record for each event. */
function* lifeOfLeases(records: number): Generator<LeaseEvent> {
  let made = 0;
  for (let lease = 1; made < records; lease += 1) {
    yield allocation(lease, FIRST_UID + (lease % LIVE), 1);
    made += 1;
    if (lease < LIVE) continue;
    for (const event of laterEvents(lease - LIVE + 1, nodeOf(lease - LIVE + 1), 1)) {
      if (made === records) return;
      yield event;
      made += 1;
    }
  }
}

const LOG_PATH = 'leases.wal.1';
const JSON_PATH = 'leases.json';
const identity = { cluster: 'bench', instance: 'main' };

const writeLog = async (directory: string, records: number): Promise<void> => {
  const log = createWriteStream(join(directory, LOG_PATH), { mode: 0o600 });
  const lines = createWriteStream(join(directory, JSON_PATH));
  const write = async (stream: typeof log, bytes: string | Uint8Array): Promise<void> => {
    if (!stream.write(bytes)) await once(stream, 'drain');
  };
  const header = encodeHeader({
    ...identity,
    epoch: 1,
    token: randomBytes(16).toString('hex'),
    wallMs: issued.wallMs,
    host: 'ctl',
    storage: '{}',
  });
  let frame: EncodedFrame = encodeFrame(TYPE.header, header, FILE_START);
  await write(log, frame.bytes);
  const nothing = { baseEpoch: 0, baseSequence: 0, baseChain: 0, wallMs: issued.wallMs };
  for (frame of encodeBase(leaseMachine.snapshot(leaseMachine.empty()), nothing, frame.next)) {
    await write(log, frame.bytes);
  }
  for (const event of lifeOfLeases(records)) {
    frame = encodeFrame(TYPE.events, encodeEvents(issued.wallMs, [leaseMachine.encode(event)]), frame.next);
    await write(log, frame.bytes);
    const text = JSON.stringify(event);
    await write(lines, `${crc32(text).toString(16).padStart(CHECK_CHARS, '0')} ${text}\n`);
  }
  log.end();
  lines.end();
  await Promise.all([finished(log), finished(lines)]);
};

const replayLog = async (directory: string): Promise<void> => {
  const path = join(directory, LOG_PATH);
  const file = await hostFiles.open(path, 'read');
  const replay = new Replay(viewOf(leaseMachine), { path, epoch: 1, identity });
  const startMs = nowMs();
  await replay.advance(file);
  say({
    ms: nowMs() - startMs,
    peakMB: peakMB(),
    records: replay.last.sequence,
    live: replay.state.leases.size,
  });
};

/** A checksum as hex. */
const CHECK_CHARS = 8;

/** As plain as it can be: reads by chunks, checks and parses each line, keeps nothing. */
const replayJson = (directory: string): void => {
  const fd = openSync(join(directory, JSON_PATH), 'r');
  const chunk = Buffer.alloc(256 << 10);
  let records = 0;
  let filled = 0;
  const startMs = nowMs();
  for (;;) {
    const count = readSync(fd, chunk, filled, chunk.length - filled, null);
    if (count === 0) break;
    filled += count;
    let start = 0;
    for (let end = chunk.indexOf(10, start); end !== -1 && end < filled; end = chunk.indexOf(10, start)) {
      const body = chunk.subarray(start + CHECK_CHARS + 1, end);
      if (crc32(body) !== Number.parseInt(chunk.toString('latin1', start, start + CHECK_CHARS), 16))
        throw new Error('checksum');
      const event: unknown = JSON.parse(body.toString('utf8'));
      if (typeof event === 'object') records += 1;
      start = end + 1;
    }
    chunk.copyWithin(0, start, filled);
    filled -= start;
  }
  say({ ms: nowMs() - startMs, peakMB: peakMB(), records });
};

const [, , command = '', place = '', ...numbers] = process.argv;
const [first = 0, second = 1] = numbers.map(Number);

switch (command) {
  case 'fill':
    await fill(place, first);
    break;
  case 'allocate':
    await allocate(place, first, second);
    break;
  case 'put':
  case 'grant':
    await etcd(command, place, first, second);
    break;
  case 'append':
    await append(place, first);
    break;
  case 'write-log':
    await writeLog(place, first);
    break;
  case 'replay':
    await replayLog(place);
    break;
  case 'replay-json':
    replayJson(place);
    break;
  default:
    throw new Error(`there is no part '${command}'`);
}
