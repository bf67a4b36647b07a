import * as Flags from '@oclif/core/flags';
import { ContextCommand } from '../../cli/context-command.ts';
import { renderLeases } from '../../cli/render-lease.ts';
import { LEASE_STATUSES } from '../../lease/lease.ts';
import { listLeases } from '../../operations/lease-show.ts';

export default class LeaseList extends ContextCommand {
  static override summary = 'List the leases that hold a uid.';
  static override flags = {
    status: Flags.option({ options: LEASE_STATUSES, multiple: true })({
      description: 'Only leases in this state.',
    }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseList);
    await this.withContext(flags, async (context) => {
      await this.show(flags, await listLeases(context, flags.status), renderLeases);
    });
  }
}
