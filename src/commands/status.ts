import { Flags } from '@oclif/core';
import { BaseCommand } from '../cli/base-command.ts';
import { renderStatus } from '../cli/render-job.ts';
import { readStatus } from '../operations/status.ts';

export default class Status extends BaseCommand {
  static override summary = 'Show leases, and the sandboxes that the workers have.';
  static override flags = {
    nodes: Flags.string({ char: 'n', description: 'Only these nodes.', helpValue: 'LIST' }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(Status);
    await this.withContext(flags, async (context) => {
      await this.show(flags, await readStatus(context, flags.nodes), renderStatus);
    });
  }
}
