import { ContextCommand } from '../cli/context-command.ts';
import { durationFlag, hookFlags, jobNodesFlag, submitterFlag, toHookInput } from '../cli/flags.ts';
import { renderAllocated } from '../cli/render-lease.ts';
import { runProlog } from '../operations/prolog.ts';

export default class Prolog extends ContextCommand {
  static override summary = 'Begin a job for its batch system: lease a uid, and ask every node.';
  static override description =
    'For the hooks of the batch system; man xce-sandbox-hooks. What its environment does not say is given by flags. Repeating it changes nothing.';
  static override flags = {
    ...hookFlags,
    submitter: submitterFlag(),
    nodes: jobNodesFlag(),
    ttl: durationFlag({
      description: 'How long the job may run; default: until its end, and [hooks] grace.',
    }),
  };

  async run(): Promise<void> {
    const { flags } = await this.parse(Prolog);
    await this.withContext(flags, async (context) => {
      const result = await runProlog(context, { ...toHookInput(flags), ttlMs: flags.ttl });
      await this.show(flags, result, ({ scheduler: _, ...lease }) => renderAllocated(lease));
    });
  }
}
