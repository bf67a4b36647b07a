import * as Flags from '@oclif/core/flags';
import { ContextCommand } from '../cli/context-command.ts';
import { leaseSelection, selectionUsage, toSelection } from '../cli/flags.ts';
import { renderNormalised } from '../cli/render-job.ts';
import { normaliseLease, requireComplete } from '../operations/normalise.ts';

export default class Normalise extends ContextCommand {
  static override summary = 'Hand the files of a job to its submitter, or look what would be handed over.';
  static override description =
    'Changes owners only once every node has certified that nothing of the uid runs; `lease release` does all of it. A walk that finds something left is an error after the report.';
  static override usage = selectionUsage('normalise');
  static override flags = {
    ...leaseSelection,
    plan: Flags.boolean({ description: 'Walk and report; change nothing.', exclusive: ['verify'] }),
    verify: Flags.boolean({ description: 'Walk and prove that nothing is left; change nothing.' }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(Normalise);
    await this.withContext(flags, async (context) => {
      const mode = flags.plan ? 'plan' : flags.verify ? 'verify' : 'apply';
      const result = await normaliseLease(context, toSelection(flags), mode);
      await this.showRequired(flags, result, renderNormalised, requireComplete);
    });
  }
}
