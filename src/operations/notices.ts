import { describeTornTail } from '../wal/damage.ts';
import type { LogNotice } from '../wal/log.ts';

/** What happened to the log on the way, for the operator; the operation itself went well. */
const describeNotice = (notice: LogNotice): string => {
  switch (notice.kind) {
    case 'torn-tail':
      return describeTornTail(notice);
    case 'epoch-taken':
      return `took epoch ${notice.epoch} of the lease log: ${notice.reason}`;
    case 'not-compacted':
      return `could not make the lease log short (${notice.path}): ${notice.reason}`;
    case 'not-emptied':
      return `could not empty a file that counts no more (${notice.path}): ${notice.reason}`;
    case 'not-remembered':
      return `could not write down what this host has seen of the lease log (${notice.path}): ${notice.reason}`;
  }
};

export const tellNotices = (context: { tell(text: string): void }, notices: readonly LogNotice[]): void => {
  for (const notice of notices) context.tell(describeNotice(notice));
};
