import { BaseCommand } from '../../cli/base-command.ts';
import { durationFlag, leaseSelection, selectionUsage, toSelection } from '../../cli/flags.ts';
import { renderLease } from '../../cli/render-lease.ts';
import { renewLease } from '../../operations/lease-renew.ts';

export default class LeaseRenew extends BaseCommand {
  static override summary = 'Give an active lease a new term from now on.';
  static override usage = selectionUsage('lease renew');
  static override flags = {
    ...leaseSelection,
    ttl: durationFlag({ description: 'Length of the new term; default: [lease] ttl.' }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseRenew);
    await this.withContext(flags, async (context) => {
      const result = await renewLease(context, { selection: toSelection(flags), ttlMs: flags.ttl });
      await this.show(flags, result, renderLease);
    });
  }
}
