import { durationFlag, leaseSelection, selectionUsage, toSelection } from '../../cli/flags.ts';
import { JobCommand } from '../../cli/job-command.ts';
import { renderLease } from '../../cli/render-lease.ts';
import { renewLease } from '../../operations/lease-renew.ts';

export default class LeaseRenew extends JobCommand {
  static override summary = 'Give an active lease a new term from now on.';
  static override usage = selectionUsage('lease renew');
  static override flags = {
    ...leaseSelection,
    ttl: durationFlag({ description: 'Length of the new term; default: [lease] ttl.' }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseRenew);
    const selection = toSelection(flags);
    await this.withJobContext(flags, selection, async (context) => {
      const result = await renewLease(context, { selection, ttlMs: flags.ttl });
      await this.show(flags, result, renderLease);
    });
  }
}
