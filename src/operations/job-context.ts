/** The composition root of operations about one job that talk to no node; see context.ts for all others. */
import { XceError } from '../base/errors.ts';
import type { Settings } from '../config/settings.ts';
import { renewTerm } from '../lease/job-leases.ts';
import { JobLog } from '../lease/job-log.ts';
import { jobView } from '../lease/job-view.ts';
import { leaseMachine } from '../lease/machine.ts';
import type { LeaseRef } from '../lease/reference.ts';
import type { LeaseStore } from '../lease/store.ts';
import { bootClock } from '../os/boot-clock.ts';
import { readBootId } from '../os/clock.ts';
import { openLog, storageWith } from './epoch-log-ports.ts';
import { tellNotices } from './notices.ts';
import { openConfig, requireRoot } from './open-config.ts';

export type JobContext = {
  readonly settings: Settings;
  readonly leases: Pick<LeaseStore, 'renew'>;
  /** One remark for the operator; never data. */
  tell(text: string): void;
  close(): Promise<void>;
};

/** A log that is there already was probed when it was made. */
const neverProbed = async (): Promise<never> => {
  throw new XceError('bug', 'the log of a job is not to be made');
};

/** Throws 'not-root', and what openConfig throws. */
export const openJobContext = (options: {
  readonly configFlag: string | undefined;
  readonly ref: LeaseRef;
  readonly tell: (text: string) => void;
}): JobContext => {
  requireRoot();
  const { settings } = openConfig(options.configFlag);
  const storage = storageWith(settings, neverProbed);
  const log = new JobLog({
    openView: () => openLog(settings, storage, jobView(options.ref)),
    openWhole: () => openLog(settings, storage, leaseMachine),
  });
  const ports = { log, clock: bootClock, bootId: readBootId() };
  return {
    settings,
    leases: { renew: (wanted, ttlMs) => renewTerm(ports, settings, wanted, ttlMs) },
    tell: options.tell,
    close: async () => tellNotices(options, await log.close()),
  };
};
