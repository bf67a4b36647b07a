import * as Flags from '@oclif/core/flags';
import { ContextCommand } from '../../cli/context-command.ts';
import { renderMetrics } from '../../cli/render-metrics.ts';
import { readMetrics } from '../../operations/worker-metrics.ts';

export default class WorkerMetrics extends ContextCommand {
  static override summary = 'Show what a worker has counted, in the text format of Prometheus.';
  static override description =
    'Of the worker of this host, over its own socket, or with --node of another one, with the certificate of this host.';
  static override examples = ['<%= config.bin %> worker metrics --node n1'];
  static override flags = {
    node: Flags.string({
      char: 'n',
      description: 'Node whose worker is asked; default: this host.',
      helpValue: 'NODE',
    }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(WorkerMetrics);
    await this.withContext(flags, async (context) => {
      await this.show(flags, await readMetrics(context, flags.node), renderMetrics);
    });
  }
}
