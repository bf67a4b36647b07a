/** The lease log as JSON lines: xce-sandbox-log(5), DUMP. */
import { formatJsonLine } from '../base/escape.ts';
import { describeTornTail } from '../wal/damage.ts';
import { decodeStorage } from '../wal/storage.ts';
import type { Context } from './context.ts';
import { dumpLeaseEpoch, type LeaseLogEntry } from './lease-log-ports.ts';

type Line = Readonly<Record<string, unknown>>;

/** One line for each part of a checkpoint and each event. */
const linesOf = (entry: LeaseLogEntry): readonly Line[] => {
  const { epoch, sequence, offset } = entry;
  const place = { epoch, sequence, offset };
  switch (entry.type) {
    case 'header': {
      const { token, wallMs, cluster, instance, host, storage } = entry.header;
      const facts = { token, wallMs, cluster, instance, host, storage: decodeStorage(storage) };
      return [{ type: 'header', ...place, ...facts }];
    }
    case 'checkpoint':
      return entry.items.map(({ part, ...value }) => ({ type: 'checkpoint', ...place, part, value }));
    case 'complete': {
      const { wallMs, items, baseEpoch, baseSequence, baseChain } = entry.complete;
      const base = { epoch: baseEpoch, sequence: baseSequence, chain: baseChain };
      return [{ type: 'complete', ...place, wallMs, items, base }];
    }
    case 'events': {
      const { wallMs } = entry;
      return entry.events.map((event) => ({ type: 'event', ...place, wallMs, event }));
    }
  }
};

export const formatEntry = (entry: LeaseLogEntry): string => linesOf(entry).map(formatJsonLine).join('');

/**
 * Writes everything that an epoch holds, or the newest complete one, as JSON lines. Where a record does not check,
 * what came before it has been written when this throws.
 */
export const dumpLeaseLog = async (
  context: Context,
  epoch: number | undefined,
  write: (text: string) => Promise<void>,
): Promise<void> => {
  const portions = dumpLeaseEpoch(context.settings, epoch);
  for (;;) {
    const { done, value } = await portions.next();
    if (done === true) {
      const { path, isComplete, offset, tornBytes } = value;
      if (tornBytes > 0) context.tell(describeTornTail({ path, offset, bytes: tornBytes }));
      if (!isComplete) context.tell(`${path} is void: it has no complete record, and nothing in it counts`);
      return;
    }
    await write(value.map(formatEntry).join(''));
  }
};
