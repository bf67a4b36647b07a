import { ContextCommand } from '../../cli/context-command.ts';
import { leaseSelection, selectionUsage, toSelection } from '../../cli/flags.ts';
import { renderLease } from '../../cli/render-lease.ts';
import { showLease } from '../../operations/lease-show.ts';

export default class LeaseShow extends ContextCommand {
  static override summary = 'Show one lease, and what it waits for.';
  static override usage = selectionUsage('lease show');
  static override flags = leaseSelection;

  async run(): Promise<void> {
    const { flags } = await this.parse(LeaseShow);
    await this.withContext(flags, async (context) => {
      await this.show(flags, await showLease(context, toSelection(flags)), renderLease);
    });
  }
}
