import { BaseCommand } from '../../cli/base-command.ts';
import { renderConfig } from '../../cli/render-config.ts';
import { showConfig } from '../../operations/config-show.ts';

export default class ConfigShow extends BaseCommand {
  static override summary = 'Show the effective configuration, and where each value comes from.';

  async run(): Promise<void> {
    const { flags } = await this.parse(ConfigShow);
    await this.show(flags, showConfig(flags.config), renderConfig);
  }
}
