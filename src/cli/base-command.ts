import { Command, Flags } from '@oclif/core';
import { type Context, openContext } from '../operations/context.ts';
import { showResult, writeTalk } from './print.ts';
import { chooseProgress } from './progress.ts';

/** What every command has: --json and --config. A command parses, calls one operation and shows its result. */
export abstract class BaseCommand extends Command {
  static override baseFlags = {
    json: Flags.boolean({ description: 'Write the result as one JSON document.', helpGroup: 'GLOBAL' }),
    config: Flags.string({
      description: 'Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini.',
      helpGroup: 'GLOBAL',
      helpValue: 'FILE',
    }),
  };

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

  /** One remark for the operator; never data. */
  protected tell(text: string): void {
    writeTalk(`xce-sandbox: ${text}\n`);
  }

  protected async show<T>(
    flags: { json: boolean },
    result: T,
    render: (result: T) => string | Promise<string>,
  ): Promise<void> {
    await showResult(flags.json, result, render);
  }

  /**
   * Shows a result that may be an error as well, for which `require` throws. With --json the error is the one document,
   * and what was found stands in it.
   */
  protected async showRequired<T>(
    flags: { json: boolean },
    result: T,
    render: (result: T) => string,
    require: (result: T) => void,
  ): Promise<void> {
    if (!flags.json) await this.show(flags, result, render);
    require(result);
    if (flags.json) await this.show(flags, result, render);
  }

  /** Errors are shown by main.ts alone, so that the exit status never depends on --json. */
  override async catch(error: Error): Promise<never> {
    throw error;
  }
}
