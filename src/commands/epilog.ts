import { ContextCommand } from '../cli/context-command.ts';
import { hookFlags, toHookInput } from '../cli/flags.ts';
import { renderEpilog } from '../cli/render-lease.ts';
import { runEpilog } from '../operations/epilog.ts';

export default class Epilog extends ContextCommand {
  static override summary = 'End a job for its batch system: free its uid by proof, drain dirty nodes.';
  static override description =
    'For the hooks of the batch system; man xce-sandbox-hooks. Does what `lease release` does, and has the nodes drained that are not certified clean. It may be repeated.';
  static override flags = hookFlags;

  async run(): Promise<void> {
    const { flags } = await this.parse(Epilog);
    await this.withContext(flags, async (context) => {
      const input = toHookInput({ ...flags, submitter: undefined, nodes: undefined });
      await this.show(flags, await runEpilog(context, input), renderEpilog);
    });
  }
}
