import { type Context, openContext } from '../operations/context.ts';
import { BaseCommand } from './base-command.ts';
import { chooseProgress } from './progress.ts';

/** A command whose operation needs more than its flags. */
export abstract class ContextCommand extends BaseCommand {
  /** Opens what the operations need, and closes it again whatever happens. */
  protected async withContext<T>(
    flags: { json: boolean; config: string | undefined },
    work: (context: Context) => Promise<T>,
  ): Promise<T> {
    const context = openContext({
      configFlag: flags.config,
      progress: chooseProgress(flags.json),
      tell: (text) => this.tell(text),
    });
    try {
      return await work(context);
    } finally {
      await context.close();
    }
  }
}
