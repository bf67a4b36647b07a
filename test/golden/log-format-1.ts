/**
 * A log of format 1 with one record of each kind, made from fixed values only. The bytes are committed beside this
 * file; whoever changes what is made here changes the format.
 */
import { encodeBase, encodeEvents, encodeFrame, encodeHeader } from '../../src/wal/encoder.ts';
import { FILE_START, TYPE } from '../../src/wal/record.ts';

export const GOLDEN = {
  cluster: 'golden',
  instance: 'main',
  epoch: 3,
  token: '000102030405060708090a0b0c0d0e0f',
  host: 'ctl-1.example.org',
  wallMs: 1_700_000_000_123,
  state: ['uid 70000 job 41', 'uid 70001 job 42 ü', ''],
  records: [
    ['uid 70002 job 43'],
    ['uid 70003 job 44', 'uid 70003 bound'],
    ['\0 bytes \xff and a long one '.repeat(20)],
  ],
  base: { baseEpoch: 1, baseSequence: 17, baseChain: 0xdeadbeef },
} as const;

/** Offsets at which the frames of the golden log begin, and its bytes. */
export const makeGoldenLog = (): { readonly offsets: readonly number[]; readonly bytes: Buffer } => {
  const { cluster, instance, epoch, token, host, wallMs, state, records, base } = GOLDEN;
  const header = { epoch, token, wallMs, cluster, instance, host, storage: '{"type":"ext4"}' };
  const frames = [encodeFrame(TYPE.header, encodeHeader(header), FILE_START)];
  const last = () => frames.at(-1)?.next ?? FILE_START;
  const snapshot = state.map((item) => Buffer.from(item, 'latin1'));
  for (const frame of encodeBase(snapshot, { ...base, wallMs: wallMs + 1 }, last())) frames.push(frame);
  for (const [index, events] of records.entries()) {
    const payload = encodeEvents(
      wallMs + 1000 * (index + 1),
      events.map((event) => Buffer.from(event, 'latin1')),
    );
    frames.push(encodeFrame(TYPE.events, payload, last()));
  }
  return {
    offsets: frames.map(({ bytes, next }) => next.offset - bytes.length),
    bytes: Buffer.concat(frames.map(({ bytes }) => bytes)),
  };
};
