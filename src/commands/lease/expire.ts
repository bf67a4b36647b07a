import * as Flags from '@oclif/core/flags';
import { ContextCommand } from '../../cli/context-command.ts';
import { leaseSelection, toSelection } from '../../cli/flags.ts';
import { renderExpired } from '../../cli/render-lease.ts';
import { expireLeases, requireSure } from '../../operations/lease-expire.ts';

export default class LeaseExpire extends ContextCommand {
  static override summary = 'Put leases whose time is over into quarantine.';
  static override description =
    'Ends the right to run and nothing else: the uid waits for `lease release`. Refused where the clock of this host cannot prove that the time is over.';
  static override usage = 'lease expire (--job ID [--attempt N] | --lease N | --all) [OPTIONS]';
  static override flags = {
    ...leaseSelection,
    all: Flags.boolean({ description: 'Every active lease.', exclusive: ['job', 'lease'] }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseExpire);
    await this.withContext(flags, async (context) => {
      const result = await expireLeases(context, flags.all ? 'all' : toSelection(flags));
      await this.showRequired(flags, result, renderExpired, requireSure);
    });
  }
}
