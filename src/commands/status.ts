import * as Flags from '@oclif/core/flags';
import { ContextCommand } from '../cli/context-command.ts';
import { renderStatus } from '../cli/render-job.ts';
import { readStatus, requireAnswers } from '../operations/status.ts';

export default class Status extends ContextCommand {
  static override summary = 'Show leases, and the sandboxes that the workers have.';
  static override description =
    'Fails, with all that was found, where a node gives no answer that was named, or that a lease still waits for, or where none answers at all.';
  static override flags = {
    nodes: Flags.string({ char: 'n', description: 'Only these nodes.', helpValue: 'LIST' }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(Status);
    await this.withContext(flags, async (context) => {
      const result = await readStatus(context, flags.nodes);
      await this.showRequired(flags, result, renderStatus, () =>
        requireAnswers(result, flags.nodes !== undefined),
      );
    });
  }
}
