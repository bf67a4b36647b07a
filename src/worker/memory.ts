/**
 * What this node remembers of each uid across restarts and reboots (lease/seen.ts says what and why), on disk.
 * One small file per uid, written and synced before anything is answered or started for it. Looking and writing
 * happen in one synchronous step, so two requests never both pass on the same memory.
 *
 * A file that cannot be read refuses its uid: nothing here can know what it said. When the whole directory is
 * lost, so is the key that lies beside it, and no certificate of a new key fits a lease that was bound to the
 * old one. Tickets of before such a loss are refused in any case: their nonces were another process's.
 */
import { XceError } from '../base/errors.ts';
import type { Uid } from '../base/ids.ts';
import {
  decodeSeen,
  encodeSeen,
  isSameSeen,
  rememberDrain,
  rememberTicket,
  type SeenUid,
} from '../lease/seen.ts';
import type { StateFiles } from '../os/state-files.ts';

/** Bytes of one file. */
export const MEMORY_BYTES_MAX = 1024;

/** What a ticket or a drain request says of itself. */
export type Standing = { readonly uid: Uid; readonly epoch: number; readonly lease: number };

export class Memory {
  readonly #files: StateFiles;

  constructor(files: StateFiles) {
    this.#files = files;
  }

  /** Throws XceError 'io' when the memory of the uid cannot be read. */
  seen(uid: Uid): SeenUid | undefined {
    const bytes = this.#files.read(String(uid));
    return bytes === undefined ? undefined : decodeSeen(bytes.toString('utf8'), uid);
  }

  /** Remembers a ticket that checkTicket accepted. Throws 'io' when that cannot be made durable. */
  remember(ticket: Standing): void {
    const seen = this.seen(ticket.uid);
    this.#write(seen, rememberTicket(seen, ticket));
  }

  /**
   * Remembers for good that the lease ended here. Throws 'ticket-epoch' or 'ticket-lease' for a request that is
   * older than what was seen: only the present owner of the log may end what the present lease runs.
   */
  bury(drain: Standing): void {
    const seen = this.seen(drain.uid);
    if (seen !== undefined && drain.epoch < seen.epoch) {
      throw new XceError(
        'ticket-epoch',
        `the request is of epoch ${drain.epoch}, epoch ${seen.epoch} was seen`,
      );
    }
    if (seen !== undefined && drain.lease < seen.lease) {
      throw new XceError(
        'ticket-lease',
        `the request is for lease ${drain.lease}, lease ${seen.lease} of uid ${drain.uid} was seen`,
      );
    }
    this.#write(seen, rememberDrain(seen, drain));
  }

  #write(last: SeenUid | undefined, next: SeenUid): void {
    if (!isSameSeen(last, next)) this.#files.write(String(next.uid), Buffer.from(encodeSeen(next)));
  }
}
