import { Command, loadHelpClass } from '@oclif/core';
import { requireWords } from '../cli/usage-error.ts';

export default class Help extends Command {
  static override summary = 'Show what a command does, and its flags.';
  static override usage = 'help [COMMAND]';
  static override strict = false;

  async run(): Promise<void> {
    requireWords(this.argv, this.config);
    const CommandHelp = await loadHelpClass(this.config);
    await new CommandHelp(this.config).showHelp(this.argv);
  }

  /** Errors are shown by main.ts alone. */
  override async catch(error: Error): Promise<never> {
    throw error;
  }
}
