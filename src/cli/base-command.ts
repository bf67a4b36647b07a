import * as Flags from '@oclif/core/flags';
import { type FlagInput, type Input, type ParserOutput, parse } from '@oclif/core/parser';
import { showResult, writeTalk } from './print.ts';

type Words = Record<string, unknown>;

/**
 * What every command has: --json and --config. A command parses, calls one operation and shows its result. What stands
 * in the statics is read by oclif, which makes help of it and takes arguments apart; it loads and runs no command.
 */
export abstract class BaseCommand {
  static summary?: string;
  static description?: string;
  static usage?: string;
  static examples?: readonly string[];
  static flags: FlagInput = {};
  static baseFlags = {
    json: Flags.boolean({ description: 'Write the result as one JSON document.', helpGroup: 'GLOBAL' }),
    config: Flags.string({
      description: 'Configuration file; default: /etc/xce-sandbox/xce-sandbox.ini.',
      helpGroup: 'GLOBAL',
      helpValue: 'FILE',
    }),
  };

  protected readonly argv: readonly string[];

  constructor(argv: readonly string[]) {
    this.argv = argv;
  }

  /** Returns the exit status, or nothing for 0. */
  static run(this: new (argv: readonly string[]) => BaseCommand, argv: readonly string[]): Promise<unknown> {
    return new this(argv).run();
  }

  abstract run(): Promise<unknown>;

  /** The arguments as the flags of the command say; a command takes no others. Throws oclif's error. */
  protected parse<F extends Words, B extends Words>(
    command: Input<F, B, Words>,
    argv: readonly string[] = this.argv,
  ): Promise<ParserOutput<F, B, Words>> {
    const flags = { ...command.baseFlags, ...command.flags } as FlagInput<F>;
    return parse<F, B, Words>([...argv], { ...command, flags });
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
}
