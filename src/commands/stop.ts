import { ContextCommand } from '../cli/context-command.ts';
import { leaseSelection, selectionUsage, toSelection } from '../cli/flags.ts';
import { renderStopped } from '../cli/render-job.ts';
import { stopJob } from '../operations/stop.ts';

export default class Stop extends ContextCommand {
  static override summary = 'End every step of a job on all its nodes. Its lease stays.';
  static override usage = selectionUsage('stop');
  static override flags = leaseSelection;

  async run(): Promise<void> {
    const { flags } = await this.parse(Stop);
    await this.withContext(flags, async (context) => {
      await this.show(flags, await stopJob(context, toSelection(flags)), renderStopped);
    });
  }
}
